"""The resident catalog versions of a process: active, previous, staged."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import torch

from engine.catalog.catalog import Catalog
from engine.catalog.delta import Delta
from engine.catalog.resident import ResidentCatalog, changed_bytes, device_bytes, host_bytes
from engine.errors import CatalogError, RequestError
from engine.request import ItemIds


@dataclass(slots=True)
class _Slot:
    resident: ResidentCatalog
    pins: int = 0


class CatalogStore:
    """Holds what is resident. A batch pins the version it starts with; a swap replaces one reference.

    The previous version, where a rollback goes, stays resident, so that it needs no upload. Thread-safe.
    ``free_memory`` gives the bytes that are free on the device; it is asked before an upload.
    """

    def __init__(
        self,
        device: torch.device,
        model_id: str,
        level_sizes: Sequence[int],
        free_memory: Callable[[], int] | None = None,
    ) -> None:
        self.device = device
        self.model_id = model_id
        self.level_sizes = tuple(level_sizes)
        self._free_memory = free_memory or (lambda: free_memory_of(device))
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._lock = Lock()
        self._slots: dict[str, _Slot] = {}
        self._active: str | None = None
        self._previous: str | None = None
        self._staged: str | None = None
        self._kept: list[str] = []

    @property
    def active(self) -> str | None:
        return self._active

    @property
    def previous(self) -> str | None:
        return self._previous

    def resident(self) -> tuple[str, ...]:
        """Versions that can be pinned by name: active first, then previous, then staged, then kept."""
        with self._lock:
            return self._named()

    def resident_bytes(self) -> int:
        """Device bytes of all versions, those included that only a pin still holds."""
        with self._lock:
            residents = [slot.resident for slot in self._slots.values()]
        shared = {id(each.base): each.base.nbytes for each in residents}
        return sum(each.own_bytes for each in residents) + sum(shared.values())

    def sizes(self) -> Mapping[str, int]:
        """Device bytes of every version that can be pinned by name."""
        with self._lock:
            return {name: _bytes(self._slots[name].resident) for name in self._named()}

    def deltas(self, version: str) -> tuple[int, int]:
        """Deltas of a version since its base, and items that they brought; nothing for one that is not resident."""
        with self._lock:
            slot = self._slots.get(version)
            return (slot.resident.deltas, slot.resident.overlaid) if slot is not None else (0, 0)

    def check_ids(self, ids: ItemIds) -> None:
        """Raises RequestError ``bad_request`` for item ids of another kind than the active version's, if any."""
        slot = None if self._active is None else self._slots.get(self._active)
        if slot is not None:
            slot.resident.check_ids(ids)

    def check_model(self, model: str, sizes: Sequence[int]) -> None:
        """Raises CatalogError ``incompatible`` if a catalog for ``model`` with codebooks of ``sizes`` does not fit."""
        if model != self.model_id:
            raise CatalogError("incompatible", f"made for model {model!r}, loaded is {self.model_id!r}")
        if tuple(sizes) != self.level_sizes:
            raise CatalogError("incompatible", f"level sizes {tuple(sizes)}, the model's are {self.level_sizes}")

    def _check_memory(self, need: int) -> None:
        free = self._free_memory()
        if need > free:
            raise CatalogError("memory", f"needs {need} bytes beside the resident versions, {free} are free")

    def stage(self, *chain: Catalog | Delta) -> ResidentCatalog:
        """Upload a version, or a delta after the versions that it changes, beside the active one; an older staged
        version is dropped.

        The parent of a first delta must be resident. Raises CatalogError, ``parent`` if it is not.
        """
        with self._lock:
            if (name := chain[-1].version) in self._named():
                return self._slots[name].resident
        return self.place(self.make(chain))

    def make(self, chain: Sequence[Catalog | Delta], parent: ResidentCatalog | None = None) -> ResidentCatalog:
        """The last version of a chain, on the device, which the store does not hold. The first is a whole catalog, or a
        delta of ``parent``, or of a resident version. The trie is made once, however many deltas there are.

        Raises CatalogError, ``parent`` if a delta is of none of these.
        """
        first, *rest = chain
        deltas = [each for each in rest if isinstance(each, Delta)]
        if len(deltas) < len(rest):
            raise CatalogError("parent", "a catalog stands among the deltas of another")
        if not isinstance(first, Delta):
            made = self._uploaded(first)
            return self._changed(deltas, made) if deltas else made
        deltas.insert(0, first)
        if parent is not None:
            return self._changed(deltas, parent)
        try:
            with self.pin(first.parent) as resident:
                return self._changed(deltas, resident)
        except RequestError as error:
            message = f"version {first.version} changes {first.parent}: {error.message}"
            raise CatalogError("parent", message) from error

    def place(self, resident: ResidentCatalog) -> ResidentCatalog:
        """Hold what was made as the staged version, unless it is resident already; returns what is held."""
        with self._lock:
            name = resident.version
            if name not in self._named():
                slot = self._slots.setdefault(name, _Slot(resident))  # a batch may still hold an older make of it
                slot.resident = resident
                dropped, self._staged = self._staged, name
                self._free(dropped)
            return self._slots[name].resident

    def _uploaded(self, catalog: Catalog) -> ResidentCatalog:
        self.check_model(catalog.model, catalog.sizes)
        self._check_memory(device_bytes(catalog) + (host_bytes(catalog) if self.device.type == "cpu" else 0))
        with _out_of_memory_refused(), self._lane():
            return ResidentCatalog(catalog, self.device)

    def _changed(self, deltas: Sequence[Delta], parent: ResidentCatalog) -> ResidentCatalog:
        for delta in deltas:
            self.check_model(delta.upserts.model, delta.upserts.sizes)
        brought = sum(delta.upserts.items for delta in deltas)
        self._check_memory(changed_bytes(parent.items + brought, self.level_sizes))
        with _out_of_memory_refused(), self._lane():
            return parent.changed_by(*deltas)

    @contextmanager
    def _lane(self) -> Iterator[None]:
        """Staging has a stream of its own: it waits for no batch and no batch waits for it."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield
        self._stream.synchronize()

    def activate(self, version: str, *, keep_previous: bool = False) -> None:
        """Serve a resident version; the one that served becomes the previous. Raises CatalogError ``not_resident``.

        ``keep_previous``: a rollback goes where it went before; the one that served is dropped, unless there is none.
        """
        with self._lock:
            self._activate(version, keep_previous)

    def rollback(self) -> str:
        """Serve the previous version again and return its name. Raises CatalogError ``no_previous``."""
        with self._lock:
            previous = self._previous
            if previous is None:
                raise CatalogError("no_previous", "there is no previous version to go back to")
            self._activate(previous)
        return previous

    def discard(self, version: str) -> None:
        """Drop a version that is staged, previous or kept. Raises CatalogError ``active`` for the one that serves."""
        with self._lock:
            if version == self._active:
                raise CatalogError("active", f"version {version} is active")
            if version == self._staged:
                self._staged = None
            if version == self._previous:
                self._previous = None
            if version in self._kept:
                self._kept.remove(version)
            self._free(version)

    def keep(self, version: str) -> None:
        """Hold a resident version until ``release``, whatever else is activated. CatalogError ``not_resident``."""
        with self._lock:
            if version not in self._named():
                raise CatalogError("not_resident", f"version {version} is not resident")
            if version not in self._kept:
                self._kept.append(version)
            if version == self._staged:
                self._staged = None

    def release(self, version: str) -> None:
        """Undo ``keep``; the version goes unless it serves, is the previous one, or a batch holds it."""
        with self._lock:
            if version in self._kept:
                self._kept.remove(version)
                self._free(version)

    def unstage(self) -> None:
        """Drop the staged version, if there is one."""
        with self._lock:
            dropped, self._staged = self._staged, None
            self._free(dropped)

    @contextmanager
    def pin(self, version: str | None = None) -> Iterator[ResidentCatalog]:
        """Hold a version (the active one by default) resident for the time of a ``with`` block.

        Raises RequestError ``no_catalog`` or ``unknown_catalog``.
        """
        with self._lock:
            name = version if version is not None else self._active
            if name is None:
                raise RequestError("no_catalog", "no catalog is resident yet")
            if name not in self._named():
                raise RequestError("unknown_catalog", f"catalog {name} is not resident")
            slot = self._slots[name]
            slot.pins += 1
        try:
            yield slot.resident
        finally:
            with self._lock:
                slot.pins -= 1
                self._free(name)

    def _activate(self, version: str, keep_previous: bool = False) -> None:
        if version not in self._named():
            raise CatalogError("not_resident", f"version {version} is not resident")
        if version == self._active:
            return
        dropped, self._active = self._active, version
        if not (keep_previous and self._previous not in (None, version)):
            dropped, self._previous = self._previous, dropped
        if self._staged == version:
            self._staged = None
        self._free(dropped)

    def _named(self) -> tuple[str, ...]:
        names = (self._active, self._previous, self._staged, *self._kept)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    def _free(self, version: str | None) -> None:
        if version in self._slots and version not in self._named() and self._slots[version].pins == 0:
            del self._slots[version]


def _bytes(resident: ResidentCatalog) -> int:
    return resident.base.nbytes + resident.own_bytes


@contextmanager
def _out_of_memory_refused() -> Iterator[None]:
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise CatalogError("memory", f"out of memory while staging: {error}") from error


def free_memory_of(device: torch.device) -> int:
    """Free bytes on the device."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory_of_host()


def free_memory_of_host() -> int:
    """What Linux calls available, in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise CatalogError("memory", "this system does not tell its available memory")
