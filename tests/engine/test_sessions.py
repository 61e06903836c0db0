"""The table of sessions and shared prefixes: who owns which pages."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from engine.settings import PAGE_TOKENS
from engine.state.page_pool import PageLease, PagePool, PagesExhaustedError
from engine.state.sessions import Context, SessionTable

PAGES = 12


def prompt(length: int, seed: int = 0) -> NDArray[np.int32]:
    """Prompts of one seed begin alike."""
    return np.random.default_rng(seed).integers(0, 1000, 4096).astype(np.int32)[:length]


def table(limit: int = PAGES) -> tuple[PagePool, SessionTable]:
    pool = PagePool(PAGES)
    return pool, SessionTable(pool, limit)


def serve(sessions: SessionTable, user: str | None, tokens: NDArray[np.int32], common: int = 0) -> Context:
    """A request from its begin to its answer."""
    context = sessions.open(user, tokens, common)
    assert sessions.make_room(context.missing)
    context.lease.grow(context.missing)
    sessions.close(context, answered=True)
    return context


def test_a_user_who_comes_back_gets_the_same_pages_and_reuses_what_begins_alike() -> None:
    pool, sessions = table()
    first = serve(sessions, "u", prompt(300)).pages.tolist()
    back = serve(sessions, "u", np.append(prompt(290), prompt(20, seed=1)))
    assert back.reused == 290
    assert back.pages.tolist() == first
    assert pool.used == 3
    longer = serve(sessions, "u", prompt(400))
    assert longer.reused == 290
    assert longer.pages.tolist()[:3] == first
    assert pool.used == 4
    stats = sessions.stats()
    assert (stats["sessions"], stats["session_pages"], stats["session_hits"], stats["reused_tokens"]) == (1, 4, 2, 580)


def test_the_last_token_is_always_computed() -> None:
    _, sessions = table()
    serve(sessions, "u", prompt(256))
    assert serve(sessions, "u", prompt(256)).reused == 255
    assert serve(sessions, "u", prompt(129)).reused == 128
    assert serve(sessions, "u", prompt(1)).reused == 0


def test_a_shorter_context_gives_its_surplus_pages_back() -> None:
    pool, sessions = table()
    serve(sessions, "u", prompt(600))
    assert pool.used == 5
    assert serve(sessions, "u", prompt(200)).reused == 199
    assert pool.used == 2
    assert sessions.stats()["session_pages"] == 2


def test_a_context_that_begins_otherwise_starts_anew() -> None:
    pool, sessions = table()
    serve(sessions, "u", prompt(300))
    assert serve(sessions, "u", prompt(300, seed=1)).reused == 0
    assert pool.used == 3
    assert sessions.stats()["session_hits"] == 0


def test_a_session_that_is_taken_is_not_there_for_a_second_request_and_the_later_answer_stays() -> None:
    pool, sessions = table()
    serve(sessions, "u", prompt(300))
    one, two = sessions.open("u", prompt(310), 0), sessions.open("u", prompt(320), 0)
    assert (one.reused, two.reused) == (300, 0)
    two.lease.grow(two.missing)
    assert not set(one.pages.tolist()) & set(two.pages.tolist())
    sessions.close(one, answered=True)
    sessions.close(two, answered=True)
    assert sessions.tokens_of("u") == 320
    assert (pool.used, pool.open_leases) == (3, 1)


def test_a_request_without_a_user_or_without_an_answer_leaves_nothing() -> None:
    pool, sessions = table()
    serve(sessions, None, prompt(300))
    assert pool.used == 0
    serve(sessions, "u", prompt(300))
    failed = sessions.open("u", prompt(310), 0)
    sessions.close(failed, answered=False)
    assert (pool.used, sessions.tokens_of("u")) == (0, 0)


def test_the_session_used_longest_ago_gives_way_and_never_one_that_is_taken() -> None:
    pool, sessions = table()
    for user in "abc":
        serve(sessions, user, prompt(4 * PAGE_TOKENS, seed=ord(user)))
    running = sessions.open("a", prompt(4 * PAGE_TOKENS, seed=ord("a")), 0)
    assert sessions.make_room(3)
    assert [bool(sessions.tokens_of(user)) for user in "abc"] == [False, False, True]
    assert sessions.make_room(8)
    assert not sessions.make_room(9)
    assert len(running.pages) == 4
    sessions.close(running, answered=True)
    assert sessions.stats()["session_evictions"] == 2
    assert pool.used == 4


def test_no_more_pages_stay_than_the_limit() -> None:
    pool, sessions = table(limit=5)
    for user in "abc":
        serve(sessions, user, prompt(2 * PAGE_TOKENS))
    assert [bool(sessions.tokens_of(user)) for user in "abc"] == [False, True, True]
    serve(sessions, "long", prompt(6 * PAGE_TOKENS))
    assert sessions.stats()["sessions"] == 2
    assert pool.used == 4
    none, off = table(limit=0)
    serve(off, "u", prompt(300), common=128)
    assert none.used == 0


def test_the_common_beginning_is_stored_once_and_read_by_all() -> None:
    pool, sessions = table()
    common = prompt(2 * PAGE_TOKENS + 50)
    asked = [np.concatenate([common, prompt(100, seed=seed)]) for seed in (1, 2, 3)]
    first = serve(sessions, "a", asked[0], len(common))
    assert first.reused == 0
    others = [serve(sessions, user, tokens, len(common)) for user, tokens in zip("bc", asked[1:], strict=True)]
    for context in others:
        assert context.reused == 2 * PAGE_TOKENS
        assert context.pages.tolist()[:2] == first.pages.tolist()[:2]
    assert pool.used == 2 + 3 * 2
    assert serve(sessions, None, asked[0], len(common)).reused == 2 * PAGE_TOKENS
    assert serve(sessions, "a", asked[0], len(common)).reused == len(asked[0]) - 1
    stats = sessions.stats()
    assert (stats["shared_prefixes"], stats["shared_prefix_pages"], stats["session_pages"]) == (1, 2, 6)


def test_two_who_computed_the_common_beginning_at_once_keep_one_copy() -> None:
    pool, sessions = table()
    contexts = [sessions.open(user, prompt(300, seed=0), 260) for user in "ab"]
    for context in contexts:
        context.lease.grow(context.missing)
    assert pool.used == 6
    for context in contexts:
        sessions.close(context, answered=True)
    assert pool.used == 2 + 1 + 1
    assert contexts[0].pages.tolist()[:2] == contexts[1].pages.tolist()[:2]


def test_a_prompt_that_ends_with_a_page_of_the_prefix_does_not_write_to_it() -> None:
    _, sessions = table()
    serve(sessions, "a", prompt(300), common=256)
    context = serve(sessions, "b", prompt(256), common=256)
    assert context.reused == 0  # of two whole pages the second holds its last token
    again = serve(sessions, "b", prompt(256), common=256)
    assert again.prefix is not None
    assert again.prefix.tokens <= again.reused


def test_a_prefix_goes_only_after_the_last_who_reads_it() -> None:
    pool, sessions = table()
    serve(sessions, "a", prompt(300), common=256)
    running = sessions.open(None, prompt(400), 256)
    assert not sessions.make_room(PAGES)
    assert (pool.used, sessions.stats()["shared_prefixes"]) == (2, 1)
    sessions.close(running, answered=False)
    assert sessions.make_room(PAGES)
    assert pool.open_leases == 0


def test_what_is_forgotten_is_named_for_zeroing_and_what_runs_is_marked() -> None:
    pool, sessions = table()
    kept = serve(sessions, "u", prompt(300), common=128)
    running = sessions.open("u", prompt(310), 128)
    other = sessions.open("v", prompt(310), 128)
    assert len(sessions.forget("u")) == 0
    assert (running.erase, other.erase) == (True, False)
    for context in (running, other):
        context.lease.grow(context.missing)
        sessions.close(context, answered=True)
    assert (sessions.tokens_of("u"), sessions.tokens_of("v")) == (0, 310)
    own = serve(sessions, "u", prompt(300), common=128).lease.pages.tolist()
    assert set(own) <= set(sessions.forget("u").tolist())
    assert kept.prefix is not None
    assert not set(own) & set(kept.prefix.lease.pages.tolist())
    assert pool.used == 1 + 2


def test_pages_that_a_forgotten_user_left_before_are_named_too_unless_another_has_them_now() -> None:
    _, sessions = table()
    evicted = serve(sessions, "u", prompt(500)).pages.tolist()
    assert sessions.make_room(PAGES)
    taken = serve(sessions, "v", prompt(200, seed=1)).pages.tolist()
    serve(sessions, None, prompt(100, seed=2))  # writes over most of a page, and is gone
    assert set(taken) < set(evicted)
    assert sorted(sessions.forget("u").tolist()) == sorted(set(evicted) - set(taken))
    assert len(sessions.forget("u")) == 0
    serve(sessions, "v", prompt(100, seed=1))  # a page fewer
    assert sorted(sessions.forget("v").tolist()) == sorted(taken)


def test_sessions_of_lost_users_are_dropped_and_those_running_do_not_stay() -> None:
    pool, sessions = table()
    for user in "abc":
        serve(sessions, user, prompt(200))
    running = sessions.open("a", prompt(210), 0)
    sessions.drop(lambda user: user in "ab")
    assert [bool(sessions.tokens_of(user)) for user in "abc"] == [False, False, True]
    sessions.close(running, answered=True)
    assert (pool.used, sessions.stats()["session_evictions"]) == (2, 0)


def test_a_lease_grows_shrinks_and_splits() -> None:
    pool = PagePool(4)
    lease = pool.lease(1)
    lease.grow(3)
    held = lease.pages.tolist()
    with pytest.raises(PagesExhaustedError):
        lease.grow(1)
    first = lease.split(2)
    assert (first.pages.tolist(), lease.pages.tolist()) == (held[:2], held[2:])
    assert pool.open_leases == 2
    lease.trim(1)
    assert pool.free == 1
    for each in (first, lease):
        each.release()
    assert (pool.free, pool.open_leases, pool.high_water) == (4, 0, 4)
    with pytest.raises(RuntimeError, match="released"):
        lease.grow(1)


class Sessions(RuleBasedStateMachine):
    """Requests of a few users, begun and ended in any order; ``written`` is what each page holds, by position."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.sessions = table(limit=9)
        self.running: list[Context] = []
        self.written: dict[int, NDArray[np.int32]] = {page: np.full(PAGE_TOKENS, -1) for page in range(PAGES)}

    @precondition(lambda self: len(self.running) < 4)
    @rule(
        user=st.sampled_from([None, "a", "b", "c"]),
        seed=st.integers(0, 1),
        common=st.sampled_from([0, 100, 128, 256]),
        same=st.integers(60, 500),
        length=st.integers(1, 500),
    )
    def begin(self, user: str | None, seed: int, common: int, same: int, length: int) -> None:
        tokens = np.append(prompt(same), prompt(500, seed=seed + 1))[:length]
        context = self.sessions.open(user, tokens, common)
        if self.sessions.make_room(context.missing):
            context.lease.grow(context.missing)
            self.prefill(context)
            self.running.append(context)
        else:
            alone = sum(-(-len(each.tokens) // PAGE_TOKENS) for each in [*self.running, context])
            assert alone > PAGES, "refused for what is kept"
            self.sessions.close(context, answered=False)

    def prefill(self, context: Context) -> None:
        """What is reused must be there; the rest is written, and only to pages that nobody else has."""
        assert 0 <= context.reused < len(context.tokens)
        pages = context.pages.tolist()
        assert len(pages) == -(-len(context.tokens) // PAGE_TOKENS)
        held = np.concatenate([self.written[page] for page in pages])
        np.testing.assert_array_equal(held[: context.reused], context.tokens[: context.reused])
        if context.prefix is not None:
            assert context.prefix.tokens <= context.reused
        for place in range(context.reused, len(context.tokens)):
            self.written[pages[place // PAGE_TOKENS]][place % PAGE_TOKENS] = context.tokens[place]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), answered=st.booleans())
    def end(self, data: st.DataObject, answered: bool) -> None:
        context = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        held = np.concatenate([self.written[page] for page in context.pages])
        np.testing.assert_array_equal(held[: len(context.tokens)], context.tokens)  # nobody wrote to it meanwhile
        self.sessions.close(context, answered=answered)

    @rule(user=st.sampled_from(["a", "b"]))
    def forget(self, user: str) -> None:
        for page in self.sessions.forget(user):
            self.written[int(page)][:] = -1
        assert self.sessions.tokens_of(user) == 0

    @rule(user=st.sampled_from(["b", "c"]))
    def drop(self, user: str) -> None:
        self.sessions.drop(lambda other: other == user)

    def leases(self) -> Iterator[PageLease]:
        yield from (session.lease for session in self.sessions._sessions.values())  # noqa: SLF001
        yield from (prefix.lease for prefix in self.sessions._prefixes.values())  # noqa: SLF001
        yield from (context.lease for context in self.running)

    @invariant()
    def every_page_has_one_owner(self) -> None:
        leases = list(self.leases())
        pages = [page for lease in leases for page in lease.pages.tolist()]
        assert len(set(pages)) == len(pages) == self.pool.used
        assert self.pool.open_leases == len(leases) == self.sessions.leases + len(self.running)
        assert self.pool.leaked == 0

    @invariant()
    def figures_and_readers_are_right_and_the_limit_holds(self) -> None:
        stats, kept = self.sessions.stats(), list(self.sessions._sessions.values())  # noqa: SLF001
        prefixes = self.sessions._prefixes.values()  # noqa: SLF001
        assert stats["session_pages"] == sum(len(session.lease) for session in kept)
        assert stats["shared_prefix_pages"] == sum(len(prefix.lease) for prefix in prefixes)
        for prefix in prefixes:
            assert prefix.readers == sum(each.prefix is prefix for each in [*kept, *self.running])
        over = stats["session_pages"] + stats["shared_prefix_pages"] > 9
        assert not over or (not kept and all(prefix.readers for prefix in prefixes))

    def teardown(self) -> None:
        for context in self.running:
            self.sessions.close(context, answered=False)
        assert self.sessions.make_room(PAGES)
        assert (self.pool.open_leases, self.pool.leaked) == (0, 0)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
