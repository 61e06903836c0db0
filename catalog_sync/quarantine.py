"""Versions that this instance found bad: remembered here, and beside the last-good copies where there is a disk."""

import logging
from collections.abc import Mapping, Sequence

import msgspec

from catalog_sync.last_good import LastGood
from catalog_sync.layout import Condemnation

KEPT = 16
"""The newest so many records stay, with the files of the newest ``FILES_KEPT``."""
FILES_KEPT = 2

log = logging.getLogger(__name__)


class LocalQuarantine:
    """One model's condemned versions by name; ``disk`` keeps them over a restart. A fault of the disk is logged."""

    def __init__(self, disk: LastGood | None) -> None:
        self._disk = disk
        self._condemned: dict[str, Condemnation] = {}
        self._unwritten: list[Condemnation] = []

    def load(self) -> None:
        """Take up what an earlier process of this directory has condemned."""
        for path in self._disk.records() if self._disk else ():
            try:
                record = msgspec.json.decode(path.read_bytes(), type=Condemnation)
            except (OSError, msgspec.DecodeError) as error:
                log.warning("%s cannot be read: %s", path, error)
            else:
                self._condemned[record.version] = record

    def get(self, version: str) -> Condemnation | None:
        return self._condemned.get(version)

    def reasons(self) -> Mapping[str, str]:
        """Reason and message by version."""
        return {each.version: f"{each.reason}: {each.message}" for each in tuple(self._condemned.values())}

    def condemn(self, record: Condemnation) -> None:
        """Remember it; ``write`` puts it on disk."""
        self._condemned[record.version] = record
        self._unwritten.append(record)

    def unwritten(self) -> list[Condemnation]:
        """What was condemned since the last call; of all that was, the oldest records over ``KEPT`` go."""
        found, self._unwritten = self._unwritten, []
        for old in self._by_age()[KEPT:]:
            del self._condemned[old.version]
        return found

    def write(self, records: Sequence[Condemnation]) -> None:
        """Put them on disk, and drop from it what is too old."""
        if self._disk is None:
            return
        try:
            for record in records:
                self._disk.set_aside(record.version, msgspec.json.encode(record))
            self._disk.drop_oldest(records=KEPT, files=FILES_KEPT)
        except OSError as error:
            log.warning("the quarantine could not be written: %s", error)

    def release(self, version: str) -> None:
        """The version may be tried again."""
        if self._condemned.pop(version, None) is not None and self._disk is not None:
            try:
                self._disk.forget(version)
            except OSError as error:
                log.warning("the quarantine of %s could not be lifted on disk: %s", version, error)

    def _by_age(self) -> list[Condemnation]:
        """The newest first."""
        return sorted(self._condemned.values(), key=lambda each: each.time_ms, reverse=True)
