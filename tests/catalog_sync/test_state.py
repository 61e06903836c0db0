import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog_sync.backoff import Backoff
from catalog_sync.layout import Pointer
from catalog_sync.state import RETRY_CAP_SECONDS, WatchState
from engine.errors import CatalogError

POLL = 10.0


def pointer(generation: int, manifest: str = "h") -> Pointer:
    return Pointer(f"v{generation}", generation, manifest)


def watching(now: float = 0.0, random: float = 0.5) -> WatchState:
    return WatchState(poll_seconds=POLL, jitter=0.2, retry_seconds=0.5, started=now, random=lambda: random)


def test_the_pointer_is_read_at_the_start_and_then_at_every_jittered_poll() -> None:
    for random, period in ((0.0, 8.0), (0.5, 10.0), (1.0, 12.0)):
        state = watching(100.0, random)
        assert state.wait(100.0) == 0
        state.pointer_read(None, 100.0)
        assert state.wait(100.0) == pytest.approx(period)
        assert state.wait(100.0 + period) == pytest.approx(0)


def test_a_notice_or_a_new_subscription_makes_the_next_read_due() -> None:
    state = watching()
    for hint in (state.notice, state.subscribed):
        state.pointer_read(None, 1.0)
        assert state.wait(2.0) > 0
        hint(2.0)
        assert state.wait(2.0) == 0
    assert state.notices == 1


def test_an_activated_pointer_is_not_acted_on_again_until_it_changes() -> None:
    state = watching()
    assert state.pointer_read(pointer(1), 0.0) == pointer(1)
    assert state.state == "fetching"
    state.activate(0.5)
    assert state.pointer_read(pointer(1), 1.0) is None
    assert (state.state, state.generation, state.activated) == ("current", 1, 1)
    assert state.pointer_read(pointer(2), 2.0) == pointer(2)


def test_another_manifest_or_an_older_generation_is_a_change_too() -> None:
    state = watching()
    state.pointer_read(pointer(5), 0.0)
    state.activate(0.0)
    for changed in (pointer(5, "other"), pointer(4, "other")):
        assert state.pointer_read(changed, 1.0) == changed
        state.activate(1.0)


def test_a_version_refused_for_good_is_left_alone_until_the_pointer_changes() -> None:
    state = watching()
    state.pointer_read(pointer(1), 0.0)
    state.refuse(CatalogError("checksum", "chunk 3 is damaged"), 0.0)
    for now in (0.1, 10.0, 1e6):
        assert state.pointer_read(pointer(1), now) is None
        assert (state.state, state.reason, state.error) == ("refused", "checksum", "chunk 3 is damaged")
    assert state.refused == {"checksum": 1}
    assert state.pointer_read(pointer(2), 1e6) == pointer(2)


def test_a_refusal_that_may_pass_is_retried_with_growing_capped_pauses() -> None:
    state = watching()
    now, pauses = 0.0, []
    for _ in range(12):
        assert state.pointer_read(pointer(1), now) == pointer(1)
        state.refuse(CatalogError("missing", "chunk 0"), now)
        state.notice(now)  # hints do not make it a hot loop
        assert state.pointer_read(pointer(1), now) is None
        start = now
        while state.pointer_read(pointer(1), now) is None:
            assert state.state == "refused"
            now += state.wait(now)
        pauses.append(now - start)
        state.refuse(CatalogError("missing", "chunk 0"), now)
        now += RETRY_CAP_SECONDS
    assert pauses[0] == pytest.approx(0.5)
    assert all(pause <= RETRY_CAP_SECONDS for pause in pauses)
    assert pauses[-1] == pytest.approx(RETRY_CAP_SECONDS)
    state.pointer_read(pointer(1), now)
    state.activate(now)
    assert state.state == "current"


def test_a_missing_pointer_changes_nothing_but_the_report() -> None:
    state = watching()
    state.pointer_read(pointer(1), 0.0)
    state.activate(0.0)
    assert state.pointer_read(None, 5.0) is None
    assert (state.state, state.generation, state.staleness(7.0)) == ("no_pointer", 1, 7.0)
    assert state.pointer_read(pointer(1), 8.0) is None
    assert (state.state, state.staleness(9.0)) == ("current", 1.0)


def test_failures_are_retried_with_growing_pauses_up_to_the_poll_period() -> None:
    state = watching()
    now, pauses = 0.0, []
    for _ in range(8):
        state.fail(CatalogError("unreachable", "down"), now)
        pauses.append(state.wait(now))
        now += pauses[-1]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, POLL, POLL, POLL]
    assert (state.state, state.reason) == ("unreachable", "unreachable")
    state.pointer_read(None, now)
    state.fail(CatalogError("unreachable", "down"), now)
    assert state.wait(now) == 0.5


def test_staleness_counts_from_the_last_time_the_active_version_was_confirmed() -> None:
    state = watching(100.0)
    assert state.staleness(103.0) == 3.0
    state.pointer_read(pointer(1), 104.0)
    state.activate(105.0)
    assert state.staleness(105.0) == 0.0
    state.pointer_read(pointer(2), 106.0)
    state.refuse(CatalogError("structure", "bad"), 106.0)
    assert state.staleness(110.0) == 5.0


@given(st.integers(0, 100), st.floats(0, 1), st.floats(0, 0.99))
def test_a_pause_never_exceeds_its_cap_by_more_than_the_jitter(failures: int, random: float, jitter: float) -> None:
    backoff = Backoff(0.1, 7.0, jitter, lambda: random)
    pauses = [backoff.pause() for _ in range(failures + 1)]
    assert all(0 < pause <= 7.0 * (1 + jitter) for pause in pauses)
    backoff.reset()
    assert backoff.pause() == pauses[0]


@given(st.lists(st.tuples(st.sampled_from(["read", "none", "fail", "notice"]), st.integers(1, 4)), max_size=40))
def test_the_newest_pointer_is_settled_exactly_once(steps: list[tuple[str, int]]) -> None:
    state, now, taken = watching(), 0.0, []
    for step, generation in steps:
        now += 1.0
        match step:
            case "read":
                if state.pointer_read(pointer(generation), now) is not None:
                    taken.append(generation)
                    state.activate(now)
            case "none":
                state.pointer_read(None, now)
            case "fail":
                state.fail(CatalogError("unreachable", "down"), now)
            case "notice":
                state.notice(now)
    read = [generation for step, generation in steps if step == "read"]
    assert taken == [g for i, g in enumerate(read) if i == 0 or read[i - 1] != g]
