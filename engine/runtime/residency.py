"""The contexts of requests: opened over what is resident, kept when they are answered, copied to the host if asked."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.catalog.looked_up import LookedUp
from engine.runtime.host_sessions import HostCopy, HostSessions
from engine.runtime.lane import Lane, Mark
from engine.state.context_kv import ContextKV
from engine.state.sessions import Context, SessionTable


class Residency:
    """``prefills``: the lane that writes to the pages; ``copies``: that of ``host``, if there is one.

    Used from one thread, but for ``tokens_of`` and ``stats``.
    """

    def __init__(
        self, kv: ContextKV, sessions: SessionTable, prefills: Lane, host: HostSessions | None, copies: Lane
    ) -> None:
        self._kv, self._sessions, self._host = kv, sessions, host
        self._prefills, self._copies = prefills, copies
        self._taken: dict[Context, HostCopy] = {}
        self._unsettled: Mark | None = None
        if host is not None:
            sessions.on_leave = host.left_the_device

    def stats(self) -> dict[str, float]:
        return {**self._sessions.stats(), **(self._host.stats() if self._host else {})}

    def tokens_of(self, user: str) -> int:
        """Tokens that are resident for the user, here or on the host."""
        return self._sessions.tokens_of(user) or (self._host.tokens_of(user) if self._host else 0)

    def looked_up(self, user: str) -> LookedUp | None:
        """The items of the user's last prompt, if it is resident, here or on the host."""
        session = self._sessions.looked_up(user)
        return session or (self._host.looked_up(user) if self._host else None)

    def open(
        self, user: str | None, tokens: NDArray[np.int32], common: int, looked_up: LookedUp | None = None
    ) -> Context:
        """A context for a prompt, without the pages that it lacks; to be closed. See ``SessionTable.open``."""
        context = self._sessions.open(user, tokens, common)
        context.looked_up = looked_up
        copy = self._host.take(context) if self._host else None
        if copy is not None:
            self._taken[context] = copy
        return context

    def fill(self, contexts: Sequence[Context], finish_another: Callable[[], bool]) -> None:
        """Lease the pages that are missing and start to bring back what the host has of them; a prefill waits for it.

        ``finish_another``: called where pages are wanting; whether it gave some back.
        """
        missing = sum(context.missing for context in contexts)
        while not self._sessions.make_room(missing) and finish_another():
            pass
        for context in contexts:
            context.lease.grow(context.missing)
        if not any(context in self._taken for context in contexts):
            return
        if self._unsettled is not None:
            self._copies.after(self._unsettled)
        for context in contexts:
            self._bring_back(context)
        self._prefills.after(self._copies.mark())

    def close(self, context: Context, *, answered: bool) -> None:
        """Keep the context of an answered request; see ``SessionTable.close``."""
        self._put_away(context)
        if not answered:
            self._unsettled = self._prefills.mark()
        kept = self._sessions.close(context, answered=answered)
        if kept and self._host is not None and context.user is not None:
            self._host.save(context.user, context)

    def clear(self, context: Context) -> None:
        """Zero the context's own pages."""
        self._zero(context.lease.pages)

    def forget(self, user: str) -> None:
        """Zero what is kept of the user. Open contexts have ``erase`` set, for whoever closes them to clear."""
        self._zero(self._sessions.forget(user))
        if self._host is not None:
            self._host.forget(user)

    def drop(self, lost: Callable[[str], bool]) -> None:
        """Let go of what is kept of these users."""
        self._sessions.drop(lost)
        if self._host is not None:
            self._host.drop(lost)

    def _bring_back(self, context: Context) -> None:
        copy = self._taken.get(context)
        if copy is not None and self._host is not None:
            self._host.bring_back(context, copy)
            self._put_away(context)

    def _put_away(self, context: Context) -> None:
        copy = self._taken.pop(context, None)
        if copy is None or self._host is None or context.user is None:
            return
        if context.keep:
            self._host.put_away(context.user, copy)
        else:
            self._host.erase(copy)

    def _zero(self, pages: NDArray[np.int32]) -> None:
        if len(pages):
            with self._prefills.active():  # in order with whoever gets the pages next
                self._kv.clear(pages)
            self._unsettled = self._prefills.mark()
