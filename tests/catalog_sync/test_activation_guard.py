from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog_sync.activation_guard import BASELINE, ActivationGuard, Breach, GuardPolicy, Tally
from catalog_sync.tallies import tallies
from engine.errors import ErrorCode, RequestError
from engine.request import BeamPolicy, RecallRequest, RecallResult, TagFilter

N = 100
POLICY = GuardPolicy(requests=N, seconds=60.0, ratio=3.0, bound=0.05)


def after(before: Tally, policy: GuardPolicy = POLICY) -> ActivationGuard:
    """A guard that has seen ``before`` and then an activation of v2."""
    guard = ActivationGuard(policy)
    guard.observe("v1", before, 0.0)
    guard.activated("v2", 10.0)
    return guard


def breach_of(before: Tally, answers: Tally) -> str | None:
    breach = after(before).observe("v2", answers, 11.0)
    return breach.reason if breach else None


@pytest.mark.parametrize(
    ("before", "answers", "reason"),
    [
        (Tally(N, 0, 0), Tally(N, 0, 0), None),
        (Tally(N, 0, 0), Tally(N, 5, 0), "error_rate"),  # at the bound
        (Tally(N, 0, 0), Tally(N, 4, 0), None),  # below it, whatever the ratio
        (Tally(N, 0, 0), Tally(N, 0, 5), "empty_rate"),
        (Tally(N, 10, 0), Tally(N, 29, 0), None),  # below three times as many
        (Tally(N, 10, 0), Tally(N, 31, 0), "error_rate"),
        (Tally(N, 0, 40), Tally(N, 0, 100), None),  # a rate that cannot grow by the ratio is never a breach
        (Tally(N - 1, 0, 0), Tally(N, N, 0), None),  # too few before
        (Tally(N, 0, 0), Tally(N - 1, N - 1, 0), None),  # too few after
    ],
)
def test_a_breach_needs_enough_answers_on_both_sides_the_ratio_and_the_bound(
    before: Tally, answers: Tally, reason: str | None
) -> None:
    assert breach_of(before, answers) == reason


def test_a_breach_says_which_version_and_how_bad_and_comes_once() -> None:
    guard = after(Tally(N, 1, 0))
    assert guard.observe("v2", Tally(N - 1, 50, 0), 11.0) is None
    assert guard.observe("v2", Tally(1, 0, 0), 12.0) == Breach(
        "v2", "v2", "error_rate", "50.0% of 100 answers were errors, before 1.0% of 100"
    )
    assert guard.observe("v2", Tally(N, N, 0), 13.0) is None
    assert guard.before == Tally(N, 1, 0)


def test_a_version_is_watched_for_the_time_and_until_it_has_answered_enough() -> None:
    guard = after(Tally(N))
    assert guard.observe("v2", Tally(N - 1), 1000.0) is None
    assert guard.watched == "v2"  # too few answers, however long ago
    guard = after(Tally(N))
    guard.observe("v2", Tally(N), 69.0)
    assert guard.watched == "v2"
    guard.observe("v2", Tally(1), 70.0)
    assert guard.watched is None
    assert guard.before == Tally(2 * N + 1)
    assert guard.observe("v2", Tally(N, N), 71.0) is None


def test_late_answers_of_the_version_before_are_no_evidence_for_either() -> None:
    guard = after(Tally(N))
    assert guard.observe("v1", Tally(N, N, 0), 11.0) is None
    assert guard.before == Tally(N)
    assert guard.observe("v2", Tally(N), 11.0) is None


def test_a_version_replaced_before_it_was_judged_leaves_the_baseline_alone() -> None:
    guard = after(Tally(N))
    guard.observe("v2", Tally(N // 2, N // 2, 0), 11.0)
    guard.activated("v3", 12.0)
    assert guard.before == Tally(N)
    assert guard.observe("v3", Tally(N, 6, 0), 13.0) is not None


def test_a_watch_goes_on_over_deltas_until_there_are_enough_answers_to_judge() -> None:
    guard = after(Tally(N))
    for number in range(3, 30):  # each has far too few answers by itself
        assert guard.observe(f"v{number - 1}", Tally(N // 30, 1), 10.0 + number) is None
        assert not guard.activated(f"v{number}", 10.0 + number, {f"v{number - 1}"})  # none of them is good yet
    breach = guard.observe("v29", Tally(N // 3, 1), 50.0)
    assert breach is not None
    assert (breach.version, breach.reason) == ("v29", "error_rate")


def test_late_answers_of_a_version_under_the_same_watch_count_and_blame_the_newest() -> None:
    guard = after(Tally(N))
    guard.activated("v3", 11.0, {"v2"})
    breach = guard.observe("v2", Tally(N, N), 12.0)
    assert breach is not None
    assert breach.version == "v3"
    assert guard.observe("v2", Tally(N, N), 13.0) is None
    assert guard.before == Tally(N)  # what the bad ones answered late is no baseline


def test_a_version_that_answered_enough_is_good_and_the_deltas_after_it_are_judged_anew() -> None:
    guard = after(Tally(N))
    guard.observe("v2", Tally(50 * N), 11.0)
    assert guard.activated("v3", 12.0, {"v2"})
    assert guard.observe("v2", Tally(N, N), 12.0) is None  # late, of one that was judged
    breach = guard.observe("v3", Tally(N, N // 10), 13.0)  # the many good answers before do not outweigh it
    assert breach is not None
    assert breach.version == "v3"


def test_deltas_do_not_make_a_watch_longer_nor_what_it_is_measured_by_worse() -> None:
    guard = after(Tally(N))
    for second in range(60):
        assert guard.observe(f"v{second + 2}", Tally(N, 4), 10.0 + second) is None
        assert guard.before == Tally(N)
        guard.activated(f"v{second + 3}", 10.0 + second, {f"v{second + 2}"})
    assert guard.observe("v62", Tally(N, 4), 70.0) is None
    assert guard.watched is None
    assert guard.before.requests > N


def test_another_base_ends_the_watch_and_only_what_was_judged_is_good() -> None:
    guard = after(Tally(N))
    guard.observe("v2", Tally(N - 1), 11.0)
    assert not guard.activated("v3", 12.0)
    assert guard.observe("v3", Tally(1, 1), 13.0) is None  # counts from nothing
    guard.observe("v3", Tally(N), 13.0)
    assert guard.activated("v4", 14.0)


@given(st.lists(st.tuples(st.integers(0, N), st.booleans(), st.booleans()), max_size=60))
def test_good_is_only_what_passed_or_answered_enough_and_a_breach_comes_while_it_is_watched(
    steps: Sequence[tuple[int, bool, bool]],
) -> None:
    """Versions v0, v1, ... come one after the other, some as deltas; ``count`` is what a plain model says."""
    guard = after(Tally(N))
    current, count, watched = "v2", 0, True
    for number, (answers, bad, is_delta) in enumerate(steps):
        breach = guard.observe(current, Tally(answers, answers if bad else 0), 11.0)
        count += answers
        if breach is not None:
            assert watched
            assert count >= N
            assert breach.version == current
            watched = False
        good = guard.activated(f"w{number}", 11.0, {current} if is_delta else ())
        assert good == (not watched or count >= N)
        count = 0 if good or not is_delta else count
        current, watched = f"w{number}", True


def test_after_a_dismissal_the_answers_are_the_baseline_again() -> None:
    guard = after(Tally(N))
    guard.dismiss()
    assert guard.observe("v2", Tally(N, N, 0), 11.0) is None
    assert guard.before == Tally(2 * N, N, 0)


@given(st.lists(st.builds(Tally, st.integers(1, 2 * N), st.integers(0, 3), st.integers(0, 3)), max_size=50))
def test_the_baseline_is_that_of_the_last_answers_and_bounded(batches: Sequence[Tally]) -> None:
    guard = ActivationGuard(POLICY)
    for batch in batches:
        guard.observe("v1", batch, 0.0)
    total = sum(batch.requests for batch in batches)
    assert guard.before.requests <= BASELINE * N + 2 * N
    assert guard.before.requests >= min(total, BASELINE * N)
    expected = Tally()
    for batch in reversed(batches):
        if expected.requests >= BASELINE * N:
            break
        expected += batch
    assert guard.before == expected


def request(catalog: str | None = None, tags: TagFilter | None = None) -> RecallRequest:
    return RecallRequest(BeamPolicy((1,)), 1, history=np.array([1]), catalog=catalog, filter=tags)


def answer(version: str, items: int) -> RecallResult:
    return RecallResult(np.arange(items), np.zeros(items, np.float32), "m", version, (1,), exhausted=False)


def error(code: ErrorCode) -> RequestError:
    return RequestError(code, "x")


def test_answers_are_counted_by_the_version_that_gave_them() -> None:
    asked = [request()] * 5
    answers: list[RecallResult | RequestError] = [
        answer("v1", 2), answer("v1", 0), answer("v2", 1), error("internal"), error("expired"),
    ]  # fmt: skip
    found = tallies(asked, answers, "v3")
    assert found == {"v1": Tally(2, 0, 1), "v2": Tally(2, 1, 0)}


def test_errors_alone_are_blamed_on_the_active_version() -> None:
    assert tallies([request()] * 2, [error("internal"), error("bad_request")], "v3") == {"v3": Tally(2, 2, 0)}
    assert tallies([request()], [error("internal")], None) == {}


def test_what_a_filter_left_empty_does_not_count_and_what_it_did_not_does() -> None:
    filtered = request(tags=TagFilter(any=("a",)))
    assert tallies([filtered, filtered], [answer("v1", 0), answer("v1", 1)], "v1") == {"v1": Tally(1, 0, 0)}


def test_requests_that_name_a_version_and_errors_of_the_load_do_not_count() -> None:
    asked = [request(catalog="v1"), request(catalog="v0"), request(), request()]
    answers: list[RecallResult | RequestError] = [
        answer("v1", 0), error("unknown_catalog"), error("overloaded"), error("too_large"),
    ]  # fmt: skip
    assert tallies(asked, answers, "v1") == {}
