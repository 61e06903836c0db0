"""Swaps under load, for a moment: what the benchmark does for minutes on a GPU."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import judged_load, swaps
from benchmarks.card import describe
from benchmarks.judged_load import Oracle, Plan
from benchmarks.results import ReportFile, load
from benchmarks.shapes import SHAPES
from benchmarks.swaps import measure, verdict
from docs.performance_catalog import swaps_section
from engine.errors import RequestError
from engine.request import RecallResult

PLAN = Plan(SHAPES["tiny"], items=3000, seconds=3.0, every=0.3, share=0.4, batch=4, beam=8, history=8)


def test_every_answer_under_swaps_is_whole_and_of_the_version_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swaps, "VERSIONS", 4)
    monkeypatch.setattr(judged_load, "REQUESTS", 12)
    cpu, file = torch.device("cpu"), tmp_path / "swaps.json"
    row = measure(
        PLAN, cpu, ReportFile(file, {**describe(cpu), "model": "tiny", "batch": PLAN.batch, "beam": PLAN.beam})
    )
    assert row["activated"] >= row["pointer_moves"] - 1 >= 3
    assert row["swaps"]["versions"] >= 3
    assert row["swaps"]["asked"] > 20
    assert verdict(row) in (0, 2)  # how long answers take beside other tests proves nothing
    assert (row["refused"], row["swaps"]["wrong"], row["swaps"]["exact_share"]) == ({}, {}, 1.0)
    page = "\n".join(swaps_section("", load(file)))
    assert f"| swaps | {row['swaps']['asked']:,} of {row['swaps']['asked']:,} | 0 | 100.00% |" in page
    assert "of that of the quiet stretches (target 1.2:" in page


def answer(items: np.ndarray, sids: np.ndarray, catalog: str) -> RecallResult:
    scores = np.zeros(len(items), np.float32)
    return RecallResult(items, scores, "m", catalog, (1,), exhausted=False, sids=sids)


def test_the_oracle_tells_every_kind_of_wrong_answer() -> None:
    oracle, tables = Oracle(PLAN, ["v0", "v1"]), [PLAN.sids(0), PLAN.sids(1)]
    items, others = np.arange(10), np.arange(100, 110)
    right = answer(items, tables[0][items], "v0")
    oracle.learn("v0", [right])
    oracle.learn("v1", [answer(others, tables[1][others], "v1")])
    assert oracle.fault(0, right) == (None, True)
    swapped = np.array([1, 0, *range(2, 10)])
    assert oracle.fault(0, answer(swapped, tables[0][swapped], "v0")) == (None, False)
    wrong: dict[str, Any] = {
        "items of another version": dataclasses.replace(right, catalog="v1"),  # the name of one, the items of the other
        "not the version's answer": answer(others, tables[0][others], "v0"),  # as from a history read in the other one
        "unknown version": dataclasses.replace(right, catalog="v9"),
        "error": RequestError("internal", "x"),
    }
    for fault, given in wrong.items():
        assert oracle.fault(0, given) == (fault, False)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, 0),
        ({"p99_over_quiet": 1.3}, 2),
        ({"refused": {"checksum": 1}}, 1),
        ({"activated": 1}, 1),
        ({"swaps": {"wrong": {"error": 1}, "asked": 5, "answered": 5}}, 1),
        ({"swaps": {"wrong": {}, "asked": 5, "answered": 4}}, 1),
    ],
)
def test_the_exit_code_says_what_is_wrong(change: dict[str, Any], code: int) -> None:
    phase = {"wrong": {}, "asked": 5, "answered": 5}
    row = {"quiet_before": phase, "swaps": phase, "quiet_after": phase, "refused": {}, "p99_over_quiet": 1.1}
    assert verdict(row | {"activated": 3, "pointer_moves": 4} | change) == code
