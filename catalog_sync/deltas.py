"""The publisher's side of deltas: the next version of a chain, and the full form that ends its growth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event
from types import MappingProxyType

import msgspec

from catalog_sync import blob
from catalog_sync.changes import make_delta
from catalog_sync.fetch import CHAIN_LIMIT, Link, decode_as, fetch_blob, fetch_chain, fetch_full, fetch_manifest
from catalog_sync.layout import Manifest, Pointer
from catalog_sync.publisher import Publisher
from engine.catalog.catalog import Catalog, Ids
from engine.catalog.delta import Delta, Overlay, check_same_kind, folded
from engine.catalog.lookup import IdIndex
from engine.errors import CatalogError

Sign = Callable[[Manifest], Manifest]

NO_POSITIONS: Mapping[str, dict[int, int]] = MappingProxyType({})


def unsigned(manifest: Manifest) -> Manifest:
    return manifest


@dataclass(frozen=True, slots=True)
class Head:
    """The current version of a model: what the next delta changes."""

    pointer: Pointer
    manifest: Manifest


class DeltaPublisher:
    """Publishes deltas over the current version of a model. Redis errors pass through; the rest is CatalogError."""

    def __init__(self, publisher: Publisher, sign: Sign = unsigned) -> None:
        self._redis, self._keys, self._sign = publisher.client, publisher.keys, sign
        self.publisher = publisher

    def head(self, model: str) -> Head:
        """Raises CatalogError ``no_version``, ``quarantined``, and what ``fetch_manifest`` raises."""
        pointer = self.publisher.pointer(model)
        if pointer is None:
            raise CatalogError("no_version", f"model {model!r} has no current version that a delta could change")
        head = Head(pointer, fetch_manifest(self._redis, self._keys, pointer))
        if bad := self.publisher.bad_part(pointer.version, self.publisher.quarantine()):
            raise CatalogError(
                "quarantined", f"version {bad} is quarantined: no instance takes a delta of it, activate another first"
            )
        return head

    def publish(
        self,
        head: Head,
        upserts: Catalog | None,
        withdrawn: Sequence[Ids],
        label: str | None = None,
        positions: Mapping[str, dict[int, int]] = NO_POSITIONS,
    ) -> tuple[Manifest, Pointer]:
        """Make the delta version of ``head`` current. ``positions``: those in topics that are others than the head's.

        Raises CatalogError: ``empty``, ``incompatible``, ``duplicate`` (of the items), ``chain`` (a full form is due
        first), ``conflict`` (``head`` is not current any more), ``verify``.
        """
        if self.chain_length(head.manifest) >= CHAIN_LIMIT:
            raise CatalogError(
                "chain", f"{CHAIN_LIMIT} deltas without a full form: `recallstream catalog rebase` first"
            )
        delta, data = make_delta(head.manifest, upserts, withdrawn)
        own = Manifest.of_delta(delta, data, head.manifest, head.pointer.manifest, label)
        manifest = self._sign(msgspec.structs.replace(own, positions={**head.manifest.positions, **positions}))
        return manifest, self.publisher.publish(manifest, data, before=head.pointer)

    def chain_length(self, manifest: Manifest) -> int:
        """Deltas from the nearest version that is there in full to this one."""
        length = 0
        while manifest.parent is not None and manifest.parent_manifest is not None and length < CHAIN_LIMIT:
            if fetch_full(self._redis, self._keys, manifest.version) is not None:
                break
            length += 1
            manifest = fetch_manifest(self._redis, self._keys, Pointer(manifest.parent, 0, manifest.parent_manifest))
        return length

    def rebase(self, version: str) -> Manifest:
        """Put a delta version into Redis in full too, so that whoever starts with nothing need not follow its chain.

        It stays the same version with the same items: nothing is activated. Takes memory for two catalogs. Raises
        CatalogError: what a fetch raises, ``verify``.
        """
        head = self.publisher.manifest(version)
        if head.parent is None:
            return head
        catalog = merged(
            [self._fetched(link) for link in fetch_chain(self._redis, self._keys, head, lambda _: None)], head.version
        )
        data = blob.encode(catalog)
        own = Manifest.of(replace(catalog, version=blob.version_of(data)), data, head.label)
        manifest = self._sign(msgspec.structs.replace(own, full_of=version))
        self.publisher.upload_full(manifest, data)
        return manifest

    def _fetched(self, link: Link) -> Catalog | Delta:
        return decode_as(link, fetch_blob(self._redis, self._keys, link.manifest, Event()))


def merged(chain: Sequence[Catalog | Delta], version: str) -> Catalog:
    """A catalog and the deltas that follow it as one catalog: what a build of all its items would make."""
    base, *deltas = chain
    if isinstance(base, Delta):
        raise CatalogError("chain", f"version {base.version} builds on another one")
    changes, parent = [], base.version
    for delta in deltas:
        if isinstance(delta, Catalog) or delta.parent != parent:
            raise CatalogError("parent", f"version {delta.version} does not change {parent}")
        check_same_kind(base, delta.upserts)
        changes.append(delta)
        parent = delta.version
    overlay = Overlay.nothing(base)
    if changes:
        overlay = overlay.followed_by(folded(changes), base, IdIndex(base.ids))
    return overlay.merged_into(base, version)
