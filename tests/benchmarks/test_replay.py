"""The replayed day: which requests it is made of, and the whole of it on the tiny model."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import replay
from benchmarks.plot_replay import replay_figure
from benchmarks.replay_day import DAY_S, PAUSE_S, busiest_day
from benchmarks.replay_users import WINDOW, Answer, summary, warm_again
from consumer.demo.movielens import MovieLens
from docs.performance_replay import replay_section
from tests.consumer.film_files import write_film_files


def data(*users: list[tuple[int, int]]) -> MovieLens:
    """Ratings of each user: second, item."""
    ratings = [rating for user in users for rating in user]
    begin = np.concatenate(([0], np.cumsum([len(user) for user in users])))
    times, events = np.array(ratings, dtype=np.int64).T
    return MovieLens(("Film",) * 9, np.zeros(9, np.int32), ((),) * 9, events, times, begin)


def test_a_visit_comes_after_so_many_ratings_and_where_the_user_leaves() -> None:
    day = busiest_day(data([(at, 1 + at) for at in (0, 1, 2, 3, 3 + PAUSE_S + 1)]), every=3, items=(5, 5))
    assert [(visit.begin, visit.end) for visit in day.visits] == [(0, 3), (3, 4), (4, 5)]
    assert [visit.at for visit in day.visits] == [2, 3, 3 + PAUSE_S + 1]


def test_the_busiest_day_has_all_its_users_in_time_order() -> None:
    other, day_two = [(5, 1)], DAY_S
    found = busiest_day(
        data(other, [(day_two + 7, 2), (day_two + 9, 3)], [(3, 4), (day_two + 8, 5)]), every=1, items=(4, 4)
    )
    assert found.date == "1970-01-02"
    assert [(visit.user, visit.at) for visit in found.visits] == [(1, 7), (2, 8), (1, 9)]
    assert found.events[2].tolist() == [5]


def test_older_histories_are_the_users_own_ratings_of_the_length_that_was_asked_for() -> None:
    day = busiest_day(data([(1, 7), (2, 8), (3, 9)]), every=2, items=(4, 10))
    assert 4 <= len(day.older[0]) <= 10
    assert day.older[0][-3:].tolist() == [7, 8, 9]
    assert day.history(day.visits[-1]).tolist() == [*day.older[0].tolist(), 7, 8, 9]
    assert day.new(day.visits[-1]).tolist() == [9]


def answers(*, cold: range = range(0), pause: tuple[int, float] = (0, 0.0)) -> list[Answer]:
    """Ten a second, all but ``cold`` with nine tenths there already; from one on all come later."""
    late = [pause[1] if place >= pause[0] else 0.0 for place in range(600)]
    return [
        Answer(place / 10 + late[place], 50.0, 100, 0 if place in cold else 90, whole=False) for place in range(600)
    ]


def test_a_restart_is_over_when_as_much_is_reused_as_in_the_run_without_it() -> None:
    cold = range(305, 355)
    found = warm_again(answers(cold=cold, pause=(305, 4.0)), answers(), restart=30.0)
    assert found["silence_s"] == pytest.approx(4.1)
    most = WINDOW - WINDOW * 0.95  # of a window may be cold
    assert found["warm_s"] == pytest.approx((50 - most) / 10)
    assert found["fast_s"] == 0.0
    assert warm_again(answers(cold=range(305, 600)), answers(), restart=30.0)["warm_s"] is None


def test_the_summary_counts_tokens_and_seconds() -> None:
    row = summary([Answer(0.2, 10.0, 100, 0, whole=True), Answer(0.6, 30.0, 300, 200, whole=False)])
    assert (row["hits"], row["reused"], row["whole_histories"], row["p50_ms"]) == (0.5, 0.5, 1, 20.0)
    assert row["series"] == [(1, 100, 0), (1, 300, 200)]


def test_a_day_is_replayed_with_sessions_and_without_and_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    histories = {f"u{user}": [1 + (user * 7 + at) % 30 for at in range(60)] for user in range(4)}
    films = write_film_files(tmp_path / "films", 30, histories)
    out = tmp_path / "replay.json"
    flags = (
        "--model tiny --beam 8 --items 100 --every 5 --tokens 30 90 --batch 4 --outstanding 3 --rate 20 --seconds 0.5 "
        "--pages 12"
    )
    monkeypatch.setattr(replay, "_SESSION_MS", 1_200)
    monkeypatch.setattr("sys.argv", ["replay", *flags.split(), "--movielens", str(films), "--out", str(out)])
    replay.main()
    report = json.loads(out.read_text())
    rows = {(row["arm"], row["what"]): row for row in report["rows"]}
    assert tuple(rows) == replay.RUNS
    warm, cold = rows[replay.SESSIONS, replay.FAST], rows[replay.NONE, replay.FAST]
    assert (warm["visits"], warm["whole_histories"]) == (cold["visits"], cold["whole_histories"]) == (48, 4)
    assert warm["context_tokens"] == cold["context_tokens"]
    assert warm["hits"] == pytest.approx(44 / 48, abs=1e-4)
    assert (cold["hits"], cold["reused_tokens"]) == (0, 0)
    page = "\n".join(replay_section("replay-cpu", report))
    assert "| in time, 20/s | no sessions | 10 |" in page
    assert len(replay_figure(report).axes[0].lines) == 3
    restarted = rows[replay.SESSIONS, replay.RESTART]
    assert restarted["whole_histories"] == 4, "histories come back from Redis"
    assert restarted["hits"] < warm["hits"]
