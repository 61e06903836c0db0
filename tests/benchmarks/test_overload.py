"""The load sweep: its arrivals, what it makes of replies, and what the page says."""

from typing import Any

import numpy as np
import pytest

from benchmarks.generator import Told
from benchmarks.overload import BURST, BURST_EVERY_S, BURST_S, arrivals, possible, summary, verdict
from benchmarks.plot_overload import overload_figure
from docs.performance_load import overload_section


def reply(status: str, at: float, *degraded: str, due: float = 0.0) -> Told:
    return Told(status, degraded, {}, due, at)


@pytest.mark.parametrize("pattern", ["poisson", "bursts"])
def test_arrivals_come_at_the_rate_that_was_asked_for(pattern: Any) -> None:
    moments = arrivals(pattern, 200.0, 40.0)
    assert len(moments) / 40.0 == pytest.approx(200.0, rel=0.05)
    assert (np.diff(moments) >= 0).all()


def test_bursts_are_ten_times_what_is_between_them() -> None:
    moments = arrivals("bursts", 500.0, 60.0)
    inside = moments % BURST_EVERY_S < BURST_S
    between = (~inside).sum() / (BURST_EVERY_S - BURST_S)
    assert inside.sum() / BURST_S / between == pytest.approx(BURST, rel=0.1)


def test_only_answers_before_the_deadline_count_as_goodput() -> None:
    told = [
        reply("ok", 0.1),
        reply("ok", 0.3, "beam"),
        reply("ok", 0.6),
        reply("rejected", 0.01),
        reply("expired", 0.5),
    ]
    row = summary(told, 2.0, 0.5)
    assert (row["goodput_per_s"], row["late"], row["rejected"], row["expired"]) == (1.0, 1, 1, 1)
    assert (row["degraded"], row["degraded_steps"], row["max_ms"]) == (0.5, {"beam": 1}, 600.0)


def test_goodput_is_taken_until_the_last_answer_so_that_a_queue_left_over_is_no_speed() -> None:
    told = [reply("ok", 0.2), reply("ok", 0.8, due=1.7), reply("rejected", 3.0, due=1.0)]
    assert summary(told, 2.0, 1.0)["goodput_per_s"] == 0.8  # 2 in 2.5 s


def test_what_is_possible_is_what_can_be_done_before_its_deadline() -> None:
    at_once = np.zeros(10)
    assert possible(at_once, 4.0, 1.0) == 4.0
    assert possible(at_once, 4.0, 1.2) == 4.0  # the fifth would be done after 1.25 s
    assert possible(np.array([0.0, 0.0, 0.0, 2.0]), 4.0, 0.5) == pytest.approx(3 / 2.25)
    assert possible(arrivals("poisson", 50.0, 20.0), 100.0, 1.0) == pytest.approx(50.0, rel=0.1)


def test_the_verdict_asks_for_all_that_is_possible_or_the_peak() -> None:
    rows = [{"goodput_per_s": goodput, "p99_ms": 90.0} for goodput in (50.0, 99.0, 100.0, 91.0)]
    most = [50.0, 100.0, 110.0, 110.0]
    found = verdict(rows, most, 0.1)
    assert (found["of_peak"], found["holds"], found["latency_holds"]) == (0.91, True, True)
    assert not verdict([rows[0] | {"goodput_per_s": 40.0}, *rows[1:]], most, 0.1)["holds"]
    rows[-1] |= {"goodput_per_s": 80.0, "p99_ms": 101.0}
    found = verdict(rows, most, 0.1)
    assert (found["holds"], found["latency_holds"]) == (False, False)


def test_the_page_and_the_plot_show_every_load() -> None:
    case = {"pattern": "bursts", "ladder": ["beam"]}
    load = {"what": "load", "times": 2.0, "longest_queue": 7, **case}
    rows: list[dict[str, Any]] = [
        {"what": "capacity", "requests_per_s": 10.0, "outstanding": 48},
        load | summary([reply("ok", 0.1, "beam")], 1.0, 0.5),
        {"what": "verdict", "possible_per_s": [19.0], "of_peak": 0.5, "holds": False, "latency_holds": True, **case},
    ]
    report = {"device": "a card", "model": "m", "items": 10, "beam": 8, "contexts": [1, 2], "deadline_ms": 500.0}
    page = "\n".join(overload_section("overload-m", report | {"rows": rows}))
    assert "| 2 | 1.0 | 19.0 | 1.0 | 100.0% | 0 | 0 | 0 | 100.0 | 100.0 | 7 |" in page
    assert "50.0% of its peak, or of what is possible below it (target 90 %: **missed**)" in page
    goodput = overload_figure(report | {"rows": rows}).axes[0].lines[0]
    assert goodput.get_xydata().tolist() == [[2.0, 1.0]]  # type: ignore[union-attr]  # an array
