"""The last good catalog on local disk, for a start without Redis."""

import glob
import logging
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from catalog_sync import blob
from engine.catalog.catalog import Catalog
from engine.catalog.delta import Delta
from engine.errors import CatalogError

STALE_S = 600.0
"""A partial file that nobody has written to for so long is what a process left that was killed."""

log = logging.getLogger(__name__)


_FULL = "="  # between a delta version and the hash of its full form
QUARANTINED = ".quarantined"
RECORD = ".quarantine.json"


class LastGood:
    """Keeps files of one model's versions in ``directory``; a name holds the version, which is the content's hash.

    The newest by modification time is the one that served last; beside a delta lies what it builds on. The full form of
    a delta version has a hash of its own, which its name holds too. A version found bad is set aside: its file stays
    under another name, with a record of why, and no start takes it.
    """

    def __init__(self, directory: Path, model: str) -> None:
        self._directory = directory
        self._stem = quote(model, safe="")
        self._parents: dict[Path, str | None] = {}

    def save(self, version: str, files: Mapping[str, blob.Bytes] | None, keep: Collection[str]) -> None:
        """Note that ``version`` serves now; without ``files`` what makes it is there already.

        ``files``: bytes by version, from what builds on nothing to ``version``. Only ``keep``, and what these build on,
        stays beside it. Raises OSError.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        if files is None:
            os.utime(self._path(version))
        for name, data in (files or {}).items():
            digest = blob.version_of(data)
            blob.write_file(self._named(name if digest == name else f"{name}{_FULL}{digest}"), data)
        paths = self._paths()
        needed = {each for name in (version, *keep) for each in self._lineage(name, paths)}
        for path in self._files():
            name = self._version_of(path)
            if name not in needed or paths.get(name, path) != path:  # a full form takes a delta's place
                path.unlink(missing_ok=True)
                self._parents.pop(path, None)

    def set_aside(self, version: str, record: bytes) -> None:
        """Quarantine a version's file, if there is one, and keep ``record`` beside it. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        blob.write_file(self._beside(version, RECORD), record)
        path = self._path(version)
        if path.exists():
            self._parents.pop(path, None)
            path.replace(self._beside(version, QUARANTINED))

    def records(self) -> list[Path]:
        """Why versions were set aside."""
        return list(self._directory.glob(f"{glob.escape(self._stem)}@*{RECORD}"))

    def forget(self, version: str) -> None:
        """Remove the file and the record of a version set aside. Raises OSError."""
        for ending in (QUARANTINED, RECORD):
            self._beside(version, ending).unlink(missing_ok=True)

    def drop_oldest(self, *, records: int, files: int) -> None:
        """Of the versions set aside keep only so many, the newest: their records, and their files. Raises OSError."""
        for ending, kept in ((RECORD, records), (QUARANTINED, files)):
            found = self._directory.glob(f"{glob.escape(self._stem)}@*{ending}")
            for path in sorted(found, key=_served_at, reverse=True)[kept:]:
                path.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what killed processes left half written; others on the same directory may be writing theirs now."""
        for path in self._directory.glob(f".{self._stem}@*.partial"):
            try:
                if time.time() - path.stat().st_mtime > STALE_S:
                    path.unlink()
                    log.info("removed %s, left half written", path)
            except FileNotFoundError:  # it was being written, or another process tidies too
                continue
            except OSError as error:
                log.warning("%s, left half written, cannot be removed: %s", path, error.strerror)

    def load(self) -> Iterator[Sequence[Catalog | Delta]]:
        """The kept versions that are whole, the one that served last first: a catalog and the deltas that follow it."""
        for path in sorted(self._files(), key=_served_at, reverse=True):
            version, paths = self._version_of(path), self._paths()
            try:
                yield [self._read(each, paths) for each in reversed(list(self._lineage(version, paths)))]
            except CatalogError as error:
                log.warning("the copy of %s is refused (%s): %s", version, error.reason, error.message)

    def _read(self, version: str, paths: Mapping[str, Path]) -> Catalog | Delta:
        path = paths.get(version, self._named(version))
        data = blob.read_file(path)
        if blob.version_of(data) != path.stem.rpartition("@")[2].rpartition(_FULL)[2]:
            raise CatalogError("checksum", f"{path}: the bytes have another hash than the name says")
        return blob.decode_version(data, version)

    def _lineage(self, version: str, paths: Mapping[str, Path]) -> Iterator[str]:
        """The version, the one it builds on, and so on."""
        seen: set[str] = set()
        parent: str | None = version
        while parent is not None and parent not in seen:
            seen.add(parent)
            yield parent
            parent = self._parent_in(paths[parent]) if parent in paths else None

    def _parent_in(self, path: Path) -> str | None:
        """What the delta in a file changes; a file is looked into once, its name is the hash of what it holds."""
        if path not in self._parents:
            self._parents[path] = blob.parent_of_file(path)
        return self._parents[path]

    def _paths(self) -> dict[str, Path]:
        """The file of every version, in full if there is one."""
        files = sorted(self._files(), key=lambda path: _FULL in path.stem.rpartition("@")[2])
        return {self._version_of(path): path for path in files}

    def _path(self, version: str) -> Path:
        """The version's file, in full if there is one."""
        return next(self._directory.glob(f"{glob.escape(self._stem)}@{version}{_FULL}*.rsc"), self._named(version))

    def _named(self, name: str) -> Path:
        return self._directory / f"{self._stem}@{name}.rsc"

    def _version_of(self, path: Path) -> str:
        return path.stem.rpartition("@")[2].partition(_FULL)[0]

    def _beside(self, version: str, ending: str) -> Path:
        return self._directory / f"{self._stem}@{version}.rsc{ending}"

    def _files(self) -> list[Path]:
        return [path for path in self._directory.glob("*.rsc") if path.stem.rpartition("@")[0] == self._stem]


def _served_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # another process on the same directory may have removed it
        return 0
