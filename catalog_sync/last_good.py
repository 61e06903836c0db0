"""The last good catalog on local disk, for a start without Redis."""

import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

from catalog_sync import blob
from engine.catalog.catalog import Catalog
from engine.errors import CatalogError

STALE_S = 600.0
"""A partial file that nobody has written to for so long is what a process left that was killed."""

log = logging.getLogger(__name__)


QUARANTINED = ".quarantined"
RECORD = ".quarantine.json"


class LastGood:
    """Keeps files of one model's versions in ``directory``; a name holds the version, which is the content's hash.

    The newest by modification time is the one that served last. A version found bad is set aside: its file stays under
    another name, with a record of why, and no start takes it.
    """

    def __init__(self, directory: Path, model: str) -> None:
        self._directory = directory
        self._stem = quote(model, safe="")

    def save(self, version: str, data: blob.Bytes | None, keep: Collection[str]) -> None:
        """Note that ``version`` serves now; without ``data`` its file is there already. Only ``keep`` stays beside it.

        Raises OSError.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._path(version)
        if data is None:
            os.utime(path)
        else:
            blob.write_file(path, data)
        for other in self._versions():
            if other != version and other not in keep:
                self._path(other).unlink(missing_ok=True)

    def set_aside(self, version: str, record: bytes) -> None:
        """Quarantine a version's file, if there is one, and keep ``record`` beside it. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        blob.write_file(self._beside(version, RECORD), record)
        path = self._path(version)
        if path.exists():
            path.replace(self._beside(version, QUARANTINED))

    def records(self) -> list[Path]:
        """Why versions were set aside."""
        return list(self._directory.glob(f"{self._stem}@*{RECORD}"))

    def forget(self, versions: Iterable[str], *, records: bool) -> None:
        """Remove the files of versions set aside, and their records if asked. Raises OSError."""
        for version in versions:
            self._beside(version, QUARANTINED).unlink(missing_ok=True)
            if records:
                self._beside(version, RECORD).unlink(missing_ok=True)

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

    def load(self) -> Iterator[Catalog]:
        """The kept catalogs that are whole, the one that served last first."""
        for version in sorted(self._versions(), key=self._served_at, reverse=True):
            try:
                data = blob.read_file(self._path(version))
                if blob.version_of(data) != version:
                    raise CatalogError("checksum", "the bytes have another hash than the name says")
                yield blob.decode(data, version)
            except CatalogError as error:
                log.warning("%s is refused (%s): %s", self._path(version), error.reason, error.message)

    def _path(self, version: str) -> Path:
        return self._directory / f"{self._stem}@{version}.rsc"

    def _beside(self, version: str, ending: str) -> Path:
        return self._directory / f"{self._stem}@{version}.rsc{ending}"

    def _served_at(self, version: str) -> int:
        try:
            return self._path(version).stat().st_mtime_ns
        except OSError:  # another process on the same directory may have removed it
            return 0

    def _versions(self) -> list[str]:
        return [path.stem.rpartition("@")[2] for path in self._directory.glob("*.rsc") if self._is_own(path)]

    def _is_own(self, path: Path) -> bool:
        return path.stem.rpartition("@")[0] == self._stem
