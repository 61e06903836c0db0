"""Copies of sessions in the host's memory, for when the device's pages are needed by others."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.catalog.looked_up import LookedUp
from engine.runtime.lane import Lane, Mark
from engine.settings import PAGE_TOKENS
from engine.state.context_kv import ContextKV
from engine.state.page_pool import PageLease, PagePool
from engine.state.sessions import Context, same_tokens


@dataclass(slots=True, eq=False)
class HostCopy:
    """Keys and values of ``tokens`` without the first ``skip`` pages, those of the shared prefix.

    ``complete``: when the copy is made; ``looked_up``: as the session had it.
    """

    tokens: NDArray[np.int32]
    skip: int
    lease: PageLease
    complete: Mark
    looked_up: LookedUp | None


class HostSessions:
    """Up to ``pages`` pages of copies, least recently used first to go. Used from the device thread only.

    All copying is done in order on the lane ``copies``: a place in host memory is never written before it was read.
    """

    def __init__(self, context: ContextKV, pages: int, copies: Lane) -> None:
        """Raises MemoryError."""
        self._context, self._lane = context, copies
        self._memory = context.host_pages(pages)
        self._pool = PagePool(pages)
        self._copies: OrderedDict[str, HostCopy] = OrderedDict()
        self._traces: dict[int, str] = {}
        self._hits = self._reused = 0

    def stats(self) -> dict[str, float]:
        return {
            "host_sessions": len(self._copies),
            "host_session_pages": self._pool.used,
            "host_session_hits": self._hits,
            "host_reused_tokens": self._reused,
        }

    def tokens_of(self, user: str) -> int:
        """Tokens of the user's copy, 0 without one. From any thread."""
        copy = self._copies.get(user)
        return 0 if copy is None else len(copy.tokens)

    def looked_up(self, user: str) -> LookedUp | None:
        """The items of the prompt that the user's copy is of."""
        copy = self._copies.get(user)
        return None if copy is None else copy.looked_up

    def take(self, context: Context) -> HostCopy | None:
        """The copy that the context can continue, to be given to ``bring_back`` or ``put_away``; else None.

        ``context.reused`` then counts the tokens that ``bring_back`` brings.
        """
        copy = None if context.user is None else self._copies.get(context.user)
        if copy is None or context.user is None:
            return None
        same = same_tokens(copy.tokens, context.tokens[:-1])
        copy.tokens = copy.tokens[:same]  # what follows is about to be written over, also while it is being copied
        if same <= context.reused or copy.skip != context.shared_pages:
            return None
        del self._copies[context.user]
        self._hits += 1
        self._reused += same - context.reused
        context.reused = same
        return copy

    def bring_back(self, context: Context, copy: HostCopy) -> None:
        """Start copying to the context's pages."""
        pages = -(-len(copy.tokens) // PAGE_TOKENS) - copy.skip
        with self._lane.active():
            for place, page in zip(copy.lease.pages[:pages], context.lease.pages, strict=False):
                self._context.page(page).copy_(self._memory[place], non_blocking=True)

    def put_away(self, user: str, copy: HostCopy) -> None:
        """Keep a copy that was taken."""
        self.discard(user)
        self._copies[user] = copy

    def save(self, user: str, context: Context) -> None:
        """Start copying a session that has become idle; what the user's copy holds already stays."""
        copy, own = self._copies.pop(user, None), context.lease.pages
        held = 0
        if copy is None:
            lease = self._pool.lease(0)
        else:
            lease = copy.lease
            if copy.skip == context.shared_pages:
                held = max(same_tokens(copy.tokens, context.tokens) // PAGE_TOKENS - copy.skip, 0)
            lease.trim(held)
        missing = len(own) - len(lease)
        while self._copies and len(own) <= self._pool.capacity and self._pool.free < missing:
            self._copies.popitem(last=False)[1].lease.release()
        if self._pool.free < missing:
            lease.release()
            return
        lease.grow(missing)
        self._traces.update(dict.fromkeys(lease.pages.tolist(), user))
        with self._lane.active():
            for place, page in zip(lease.pages[held:], own[held:], strict=True):
                self._memory[place].copy_(self._context.page(page), non_blocking=True)
        self._copies[user] = HostCopy(context.tokens, context.shared_pages, lease, self._lane.mark(), context.looked_up)

    def left_the_device(self, user: str) -> None:
        """The user's pages are about to be written over: a copy that is not complete yet is none."""
        copy = self._copies.get(user)
        if copy is not None and not copy.complete.reached:
            self.discard(user)

    def discard(self, user: str) -> None:
        copy = self._copies.pop(user, None)
        if copy is not None:
            copy.lease.release()

    def erase(self, copy: HostCopy) -> None:
        """Zero a copy that was taken, and give its place back."""
        self._zero(copy.lease.pages.tolist())
        copy.lease.release()

    def forget(self, user: str) -> None:
        """Zero the user's copy, and of those that gave way the places that nobody has taken since."""
        self.discard(user)
        free = self._pool.free_pages()
        self._zero([place for place, last in self._traces.items() if last == user and place in free])

    def _zero(self, places: Sequence[int]) -> None:
        if not places:
            return
        self._lane.mark().wait()
        self._memory[torch.tensor(places)] = 0
        for place in places:
            del self._traces[place]

    def drop(self, lost: Callable[[str], bool]) -> None:
        for user in filter(lost, tuple(self._copies)):
            self.discard(user)
