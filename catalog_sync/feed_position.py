"""How far a topic of item changes is in the catalog, and which of its records are not to be published again."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from catalog_sync.connection import get_hash
from catalog_sync.deltas import Head
from catalog_sync.layout import Manifest
from catalog_sync.publisher import Publisher
from engine.errors import CatalogError


class Range(NamedTuple):
    """Records of a partition from ``begin`` to before ``end``."""

    partition: int
    begin: int
    end: int


class FeedPosition:
    """What one process has read of a topic, beside what the versions of the model hold.

    Every version says up to where it holds the topic's changes. So if the pointer goes back behind a version that was
    found bad, the records since then are read again, all but those that the bad version itself brought. Where it goes
    back and nothing is found bad, somebody did not want the changes: they stay out. Redis errors pass through.
    """

    def __init__(self, publisher: Publisher, topic: str) -> None:
        self._publisher, self._topic = publisher, topic
        self._read: dict[int, int] = {}
        self._unpublished: dict[int, int] = {}  # up to where it was read for nothing since the last version
        self._seen: set[str] = set()  # versions that hold what was read
        self._went_back: dict[int, int] = {}
        self._brought: dict[str, tuple[Range, ...]] = {}

    def held(self, manifest: Manifest) -> Mapping[int, int]:
        """By partition the first record that a version does not hold; none where nothing is known of a partition.

        Raises CatalogError ``positions`` for what is noted and makes no sense.
        """
        key, prefix = self._publisher.keys.positions(manifest.version), f"{self._topic}/".encode()
        noted = get_hash(self._publisher.client, key)
        try:
            places = {int(name[len(prefix) :]): int(at) for name, at in noted.items() if name.startswith(prefix)}
        except ValueError as error:
            raise CatalogError("positions", f"{key}: {error}") from error
        return {**places, **manifest.positions.get(self._topic, {})}

    def begin(self, manifest: Manifest, otherwise: Mapping[int, int]) -> dict[int, int]:
        """Where to begin with the partitions of ``otherwise``, if nothing is known of one there."""
        held = self.held(manifest)
        begin = {each: held.get(each, at) for each, at in otherwise.items()}
        self._read |= begin
        self._seen.add(manifest.version)
        self._unpublished = {each: at for each, at in self._unpublished.items() if each not in begin}
        return begin

    def back(self, head: Head, begins: Mapping[int, int]) -> dict[int, int]:
        """From where to read again, by partition, before a delta of ``head`` is made of what begins at ``begins``.

        Says so once for every move of the pointer.
        """
        held, generation = self.held(head.manifest), head.pointer.generation
        at = {each: begin for each, begin in begins.items() if each not in self._read}
        if self._was_bad():
            at |= self._read
        back = {
            each: held[each]
            for each in at.keys() & held.keys()
            if held[each] < at[each] and self._went_back.get(each) != generation
        }
        self._went_back |= dict.fromkeys(back, generation)
        self._read |= back
        self._unpublished = {each: at for each, at in self._unpublished.items() if each not in back}
        return back

    def after(self, head: Head, begins: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
        """The positions of a delta of ``head`` that is made of the records from ``begins`` to ``ends``.

        What a head does not say, one that was built elsewhere, is noted beside it: it may become current again.
        """
        held = self.held(head.manifest)
        unsaid = {each: at for each, at in {**begins, **self._read}.items() if each not in held}
        if unsaid:
            noted: dict[Any, Any] = {f"{self._topic}/{each}": at for each, at in unsaid.items()}
            self._publisher.client.hset(self._publisher.keys.positions(head.pointer.version), mapping=noted)
        passed = {each: at for each, at in self._unpublished.items() if at > held.get(each, 0)}
        return {**unsaid, **held, **passed, **ends}

    def fresh(self, head: Head, begins: Mapping[int, int]) -> "Fresh":
        """Tells which records a delta of ``head`` is to be made of."""
        held = {**self.held(head.manifest), **self._unpublished}
        # another process read on from here, faster; records from further back are those of a topic made anew
        known = {
            each: held[each]
            for each in begins.keys() & self._read.keys() & held.keys()
            if begins[each] >= self._read[each]
        }
        bad = [each for version in self._publisher.quarantine() for each in self._brought_by(version)]
        return Fresh(known, bad)

    def published(self, version: str | None, ends: Mapping[int, int], after: Mapping[int, int]) -> None:
        """Note up to where records were read and dealt with; ``after`` is the position of ``version``, if any."""
        self._read |= ends
        self._unpublished |= after
        if version is not None:
            self._seen = {version}
            self._unpublished.clear()

    def _was_bad(self) -> bool:
        quarantine = self._publisher.quarantine()
        return any(self._is_bad(version, quarantine) for version in self._seen)

    def _is_bad(self, version: str, quarantine: Collection[str]) -> bool:
        try:
            return self._publisher.bad_part(version, quarantine) is not None
        except CatalogError:  # it was deleted
            return False

    def _brought_by(self, version: str) -> tuple[Range, ...]:
        """The records that made a version of the one that it changes; none if either is not there any more."""
        if version not in self._brought:
            try:
                manifest = self._publisher.manifest(version)
                before = self.held(self._publisher.manifest(manifest.parent)) if manifest.parent is not None else {}
            except CatalogError:
                return ()
            ends = self.held(manifest) if manifest.parent is not None else {}
            self._brought[version] = tuple(
                Range(each, before[each], end) for each, end in ends.items() if each in before and before[each] < end
            )
        return self._brought[version]


class Fresh(NamedTuple):
    """``held`` by partition: records before it are in the catalog. ``bad``: those that made a version found bad."""

    held: Mapping[int, int]
    bad: Sequence[Range]

    def is_held(self, partition: int, offset: int) -> bool:
        return offset < self.held.get(partition, 0)

    def is_bad(self, partition: int, offset: int) -> bool:
        return any(each.partition == partition and each.begin <= offset < each.end for each in self.bad)
