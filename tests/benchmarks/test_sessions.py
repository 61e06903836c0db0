"""Sessions against cold runs, on the tiny model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import sessions
from benchmarks.cases import Case
from benchmarks.floor import FloorBench
from benchmarks.results import load
from benchmarks.sessions import FLOOR, HOST, NEW_EVENTS, PROFILE, SESSION
from benchmarks.shapes import SHAPES
from docs.performance import performance_page


def test_a_continued_history_is_timed_beside_a_cold_one_and_its_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "sessions.json"
    few = "--other-events 0 40 --other-batches 1 2 --other-rounds 1"
    flags = f"--model tiny --beam 8 --tokens 600 --events 4 {few} --batches 1 2 --items 500 --rounds 2 --out"
    monkeypatch.setattr("sys.argv", ["sessions", *flags.split(), str(out)])
    monkeypatch.setattr(sessions, "WARM_ROUNDS", 1)
    sessions.main()
    rows = json.loads(out.read_text())["rows"]
    levels, events = SHAPES["tiny"].levels, 600 // SHAPES["tiny"].levels
    for what in (SESSION, HOST):
        for row, floor in zip(of(rows, what), of(rows, f"{what}, {FLOOR}"), strict=True):
            assert (row["context"], row["new_tokens"]) == ((events + 4) * levels + 2, 4 * levels + 1)
            assert row["same_items"] > 0.9
            assert floor["ms"] < floor["cold_ms"]
            assert floor["of_the_floor"] == pytest.approx(row["ms"] / floor["ms"])
    assert [row["batch"] for row in of(rows, SESSION)] == [row["batch"] for row in of(rows, HOST)] == [1, 2]
    grown = [(row["batch"], row["new_events"], row["new_tokens"]) for row in of(rows, NEW_EVENTS)]
    assert grown == [(batch, new, new * levels + 1) for batch in (1, 2) for new in (0, 40)]
    parts = {"prefill": {"products": 1.0}, "level 1": {"selection": 0.5}}
    out.write_text(json.dumps(load(out) | {"rows": [*rows, {"what": PROFILE, "batch": 1, "parts": parts}]}))
    page = performance_page(tmp_path)
    assert "| 1 | prefill | 1.00 |  |" in page
    assert "| 1 | level 1 |  | 0.50 |" in page
    assert "## Users who come back: tiny" in page
    assert f"| a user who comes back, over the floor of decoding and of the new tokens | ≤ {sessions.TARGET} |" in page
    for row in (*of(rows, SESSION), *of(rows, HOST)):
        assert (
            f"| {row['batch']} | {row['cold']['ms']:.1f} | {row['ms']:.1f} | {row['cold_over_session']:.1f} |" in page
        )


def test_the_floor_of_a_continued_batch_grows_with_its_new_tokens() -> None:
    floors, case = FloorBench(torch.device("cpu")), Case(SHAPES["tiny"], 8, 2_000, 2)
    whole = floors.floor(case)
    assert floors.continued(case, 16, whole) < floors.continued(case, 1_500, whole)


def of(rows: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["what"] == what]


def test_the_splits_of_a_few_new_tokens_are_shown_rule_by_rule(tmp_path: Path) -> None:
    timed = {
        "what": "timed",
        "context": 5060,
        "new_tokens": 61,
        "batch": 1,
        "us": {"whole": 75.0, "5 pages, 8 tiles": 20.0},
    }
    report = {
        "device": "some",
        "taken": "5 pages, 8 tiles",
        "rows": [{"what": "checked", "error": 0.002}, timed | {"cudnn_us": 70.0, "flash_us": 30.0, "read_us": 5.0}],
    }
    (tmp_path / "prompt_splits-some.json").write_text(json.dumps(report))
    page = performance_page(tmp_path)
    assert "| 5060 | 61 | 1 | 75 | 20 | 70 | 30 | 5 |" in page
    assert "by at most 0.002" in page
