"""The last good catalog on local disk, for a start without Redis."""

from pathlib import Path
from urllib.parse import quote

from catalog_sync import blob
from engine.catalog.catalog import Catalog
from engine.errors import CatalogError


class LastGood:
    """Keeps one catalog file per model in ``directory``; its name holds the version, which is the content's hash."""

    def __init__(self, directory: Path, model: str) -> None:
        self._directory = directory
        self._stem = quote(model, safe="")

    def save(self, version: str, data: blob.Bytes) -> None:
        """Keep this version in place of the one before. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{self._stem}@{version}.rsc"
        blob.write_file(path, data)
        for other in self._files():
            if other != path:
                other.unlink(missing_ok=True)

    def load(self) -> Catalog | None:
        """The kept catalog, verified; none if none is kept. Raises CatalogError ``checksum``, ``structure``, …"""
        for path in self._files():
            data = blob.read_file(path)
            version = path.stem.rpartition("@")[2]
            if blob.version_of(data) != version:
                raise CatalogError("checksum", f"{path}: the bytes are not those of version {version}")
            return blob.decode(data, version)
        return None

    def _files(self) -> list[Path]:
        return sorted(self._directory.glob(f"{self._stem}@*.rsc"), key=lambda path: path.stat().st_mtime, reverse=True)
