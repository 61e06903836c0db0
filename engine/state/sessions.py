"""Contexts that stay between requests: users' sessions, and the beginning of a prompt that all users share.

No tensors: this is who owns which pages. Used from the device thread only; the figures may be read from any.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.catalog.looked_up import LookedUp
from engine.settings import PAGE_TOKENS
from engine.state.page_pool import PageLease, PagePool


@dataclass(slots=True, eq=False)
class Prefix:
    """Whole pages that begin the prompts of a template; nobody writes to them. ``readers``: contexts that begin so."""

    lease: PageLease
    readers: int = 0

    @property
    def tokens(self) -> int:
        return len(self.lease) * PAGE_TOKENS


@dataclass(slots=True, eq=False)
class Context:
    """The tokens of one prompt and the pages of their keys and values: the prefix's, then those of ``lease``.

    ``common``: how many tokens at the beginning belong to the template. ``reused``: how many were there already; the
    rest is written by the request that holds the context. ``keep``: once answered it becomes the session of ``user``,
    if that is somebody; ``erase``: instead its own pages are to be zeroed. ``looked_up``: the items of its prompt.
    """

    user: str | None
    tokens: NDArray[np.int32]
    common: int
    prefix: Prefix | None
    lease: PageLease
    reused: int
    keep: bool = True
    erase: bool = False
    looked_up: LookedUp | None = None

    @property
    def shared_pages(self) -> int:
        """Those of the prefix."""
        return 0 if self.prefix is None else len(self.prefix.lease)

    @property
    def missing(self) -> int:
        """Pages that are still to be leased."""
        return _pages_of(len(self.tokens)) - self.shared_pages - len(self.lease)

    @property
    def pages(self) -> NDArray[np.int32]:
        """All of them in order, int32 ``[n]``."""
        own = self.lease.pages
        return own if self.prefix is None else np.concatenate([self.prefix.lease.pages, own])


class SessionTable:
    """Opens contexts for requests and keeps them when they are answered, at most ``limit`` pages of them.

    A session is taken by the request that continues it and comes back with the answer: another request of its user
    finds none in between and starts anew. What is kept here gives way to whoever needs the pages, least recently used
    first, a prefix after the last session that begins with it. ``on_leave`` hears of users whose kept pages are given
    back, before anybody else may get them.
    """

    on_leave: Callable[[str], None] | None = None

    def __init__(self, pool: PagePool, limit: int) -> None:
        self._pool, self._limit = pool, limit
        self._sessions: OrderedDict[str, Context] = OrderedDict()
        self._prefixes: dict[bytes, Prefix] = {}
        self._running: set[Context] = set()
        self._traces: dict[int, str] = {}
        self._session_pages = self._prefix_pages = 0
        self._hits = self._evictions = self._reused = 0

    def stats(self) -> dict[str, float]:
        """Sessions and prefixes held now; hits, tokens that were not computed again and evictions so far."""
        return {
            "sessions": len(self._sessions),
            "session_pages": self._session_pages,
            "shared_prefixes": len(self._prefixes),
            "shared_prefix_pages": self._prefix_pages,
            "session_hits": self._hits,
            "session_evictions": self._evictions,
            "reused_tokens": self._reused,
        }

    @property
    def leases(self) -> int:
        """Leases of what is kept here, as against those of running requests."""
        return len(self._sessions) + len(self._prefixes)

    def tokens_of(self, user: str) -> int:
        """Tokens of the user's session, 0 without one. From any thread."""
        session = self._sessions.get(user)
        return 0 if session is None else len(session.tokens)

    def looked_up(self, user: str) -> LookedUp | None:
        """The items of the prompt that the user's session is of."""
        session = self._sessions.get(user)
        return None if session is None else session.looked_up

    def open(self, user: str | None, tokens: NDArray[np.int32], common: int) -> Context:
        """A context for a prompt (int32 ``[n]``, not empty), without the pages that it lacks; to be closed.

        The last token is never reused: its hidden state is what the request is about.
        """
        prefix = self._prefixes.get(_prefix_key(tokens, common))
        everyones = 0 if prefix is None else prefix.tokens
        session = None if user is None else self._take(user)
        same = 0 if session is None else same_tokens(session.tokens, tokens[:-1])
        if session is not None and same > everyones and session.prefix in (None, prefix):
            context = Context(user, tokens, common, session.prefix, session.lease, same)
            self._trace(context)
            context.lease.trim(len(context.lease) + context.missing)
            self._hits += 1
        else:
            if session is not None:
                self._let_go(session)
            context = Context(user, tokens, common, prefix, self._pool.lease(0), everyones)
            if prefix is not None:
                prefix.readers += 1
        self._reused += context.reused
        self._running.add(context)
        return context

    def make_room(self, pages: int) -> bool:
        """Let go of what is kept until so many pages are free; whether they are."""
        while self._pool.free < pages:
            if not self._evict():
                return False
        return True

    def close(self, context: Context, *, answered: bool) -> bool:
        """Keep what was answered, so that every page holds numbers; give the pages of any other context back.

        Whether it is a session now.
        """
        self._running.remove(context)
        keep = answered and context.keep and self._limit > 0
        if keep:
            self._share(context)
        if keep and context.user is not None and self._prefix_pages + len(context.lease) <= self._limit:
            self._keep(context.user, context)
        else:
            self._release(context)
        while self._session_pages + self._prefix_pages > self._limit and self._evict():
            pass
        return context.user is not None and self._sessions.get(context.user) is context

    def forget(self, user: str) -> NDArray[np.int32]:
        """Let go of all that is the user's. Returns free pages that were the user's last, for the caller to zero before
        they are used again.

        Contexts that are running have ``erase`` set: zero their own pages before closing them.
        """
        for context in self._running:
            if context.user == user:
                context.keep, context.erase = False, True
        session = self._take(user)
        if session is not None:
            self._let_go(session)
        free = self._pool.free_pages()
        pages = [page for page, last in self._traces.items() if last == user and page in free]
        for page in pages:
            del self._traces[page]
        return np.array(pages, dtype=np.int32)

    def drop(self, lost: Callable[[str], bool]) -> None:
        """Give the pages of these users' sessions back; those that are running will not be kept either."""
        for user in filter(lost, tuple(self._sessions)):
            if (session := self._take(user)) is not None:
                self._let_go(session)
        for context in self._running:
            context.keep &= context.user is None or not lost(context.user)

    def _take(self, user: str) -> Context | None:
        session = self._sessions.pop(user, None)
        if session is not None:
            self._session_pages -= len(session.lease)
        return session

    def _keep(self, user: str, context: Context) -> None:
        older = self._take(user)
        if older is not None:
            self._let_go(older)
        self._sessions[user] = context
        self._session_pages += len(context.lease)

    def _share(self, context: Context) -> None:
        """Let the context read the template's prefix where all do; where nobody has it yet, its own becomes that."""
        key = _prefix_key(context.tokens, context.common)
        if context.prefix is not None or not key:
            return
        first = context.lease.split(_pages_of(len(key) // context.tokens.itemsize))
        prefix = self._prefixes.get(key)
        if prefix is None:
            prefix = self._prefixes[key] = Prefix(first)
            self._prefix_pages += len(first)
        else:
            first.release()
        prefix.readers += 1
        context.prefix = prefix

    def _evict(self) -> bool:
        """Let go of the session used longest ago, or of a prefix that nobody reads."""
        if self._sessions:
            _, session = self._sessions.popitem(last=False)
            self._session_pages -= len(session.lease)
            self._let_go(session)
            self._evictions += 1
            return True
        for key, prefix in self._prefixes.items():
            if not prefix.readers:
                self._prefix_pages -= len(prefix.lease)
                prefix.lease.release()
                del self._prefixes[key]
                return True
        return False

    def _let_go(self, session: Context) -> None:
        if self.on_leave is not None and session.user is not None:
            self.on_leave(session.user)
        self._release(session)

    def _release(self, context: Context) -> None:
        self._trace(context)
        context.lease.release()
        if context.prefix is not None:
            context.prefix.readers -= 1

    def _trace(self, context: Context) -> None:
        """Note whose keys and values its own pages hold."""
        if context.user is not None:
            self._traces.update(dict.fromkeys(context.lease.pages.tolist(), context.user))


def _pages_of(tokens: int) -> int:
    return -(-tokens // PAGE_TOKENS)


def _prefix_key(tokens: NDArray[np.int32], common: int) -> bytes:
    """The whole pages of the common tokens, the prompt's last token left out, which is always computed."""
    return tokens[: min(common, len(tokens) - 1) // PAGE_TOKENS * PAGE_TOKENS].tobytes()


def same_tokens(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Length of the common prefix."""
    shorter = min(len(one), len(other))
    differ = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differ[0]) if len(differ) else shorter
