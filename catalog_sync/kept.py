"""The versions that a group keeps resident beside the one that serves, for requests that name them."""

from collections.abc import Callable, Mapping

from catalog_sync.layout import Pin, PinnedVersion, Pointer
from catalog_sync.state import TRANSIENT
from engine.catalog.store import CatalogStore
from engine.errors import CatalogError

RESIDENT = "resident"


class KeptVersions:
    """``load`` makes a version resident or raises CatalogError."""

    def __init__(self, store: CatalogStore, load: Callable[[Pointer], None]) -> None:
        self._store, self._load = store, load
        self._held: set[str] = set()
        self._refused: dict[PinnedVersion, CatalogError] = {}
        self._states: Mapping[str, str] = {}

    def follow(self, pin: Pin | None) -> None:
        """Load what the pin keeps and is not here, release what it no longer keeps.

        What is refused for good is not tried again while the pin stands; what may pass is, at every call.
        """
        wanted = pin.keep if pin is not None else ()
        for version in self._held - {each.version for each in wanted}:
            self._store.release(version)
            self._held.discard(version)
        self._refused = {each: error for each, error in self._refused.items() if each in wanted}
        for each in wanted:
            if each.version in self._held and each.version in self._store.resident():
                continue
            if (refusal := self._refused.get(each)) and refusal.reason not in TRANSIENT:
                continue
            try:
                self._load(Pointer(each.version, pin.generation if pin else 0, each.manifest))
                self._store.keep(each.version)
            except CatalogError as error:
                self._refused[each] = error
            else:
                self._refused.pop(each, None)
                self._held.add(each.version)
        refused = {each.version: f"{error.reason}: {error.message}" for each, error in self._refused.items()}
        self._states = dict.fromkeys(sorted(self._held), RESIDENT) | refused

    def states(self) -> Mapping[str, str]:
        """``resident``, or the reason why not, by version; from any thread."""
        return self._states
