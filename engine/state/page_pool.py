"""Leases over the pages of ContextKV. Used from the device thread only."""

from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray


class PagesExhaustedError(Exception):
    """Fewer pages are free than were asked for; who plans by ``PagePool.free`` does not see this."""


class PagePool:
    """Hands out page numbers ``0 .. capacity - 1``; the most recently used come first, so a quiet pool stays small."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.high_water = 0
        self.open_leases = 0
        self.leaked = 0
        self._free = list(range(capacity - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.capacity - len(self._free)

    def free_pages(self) -> frozenset[int]:
        """The pages that nobody holds."""
        return frozenset(self._free)

    def lease(self, pages: int) -> "PageLease":
        """Take ``pages`` pages until the lease is released. Raises ``PagesExhaustedError``."""
        taken = self._take(pages)
        self.open_leases += 1
        return PageLease(self, taken)

    def _take(self, pages: int) -> list[int]:
        if pages > len(self._free):
            raise PagesExhaustedError(f"{pages} pages asked for, {len(self._free)} of {self.capacity} free")
        taken = [self._free.pop() for _ in range(pages)]
        self.high_water = max(self.high_water, self.used)
        return taken

    def _give_back(self, pages: list[int]) -> None:
        self._free.extend(reversed(pages))


class PageLease:
    """Pages held by one owner. A context manager; dropped unreleased it gives them back and counts as leaked."""

    def __init__(self, pool: PagePool, pages: list[int]) -> None:
        self._pool = pool
        self._held: list[int] | None = pages

    def __len__(self) -> int:
        return len(self._held or ())

    @property
    def pages(self) -> NDArray[np.int32]:
        """In order, int32 ``[n]``."""
        return np.array(self._held or (), dtype=np.int32)

    def grow(self, pages: int) -> None:
        """Take ``pages`` more, behind those held. Raises ``PagesExhaustedError``."""
        self._open.extend(self._pool._take(pages))  # noqa: SLF001  (a lease is the pool's other half)

    def trim(self, pages: int) -> None:
        """Give back all but the first ``pages``."""
        held = self._open
        self._pool._give_back(held[pages:])  # noqa: SLF001  (as above)
        del held[pages:]

    def split(self, pages: int) -> "PageLease":
        """The first ``pages`` of them, from now on a lease of their own."""
        held = self._open
        first = held[:pages]
        del held[:pages]
        self._pool.open_leases += 1
        return PageLease(self._pool, first)

    def release(self) -> None:
        """Give the pages back; a second call does nothing."""
        if self._held is not None:
            self._pool._give_back(self._held)  # noqa: SLF001  (as above)
            self._pool.open_leases -= 1
            self._held = None

    @property
    def _open(self) -> list[int]:
        if self._held is None:
            raise RuntimeError("the lease was released")
        return self._held

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        if self._held is not None:
            self._pool.leaked += 1
            self.release()
