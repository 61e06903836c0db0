"""Sessions against cold runs, on the tiny model."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import sessions
from benchmarks.cases import Case
from benchmarks.floor import FloorBench
from benchmarks.shapes import SHAPES


def test_a_continued_history_is_timed_beside_a_cold_one_and_its_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "sessions.json"
    flags = "--model tiny --beam 8 --tokens 600 --events 4 --batches 1 2 --items 500 --rounds 2 --out"
    monkeypatch.setattr("sys.argv", ["sessions", *flags.split(), str(out)])
    monkeypatch.setattr(sessions, "WARM_ROUNDS", 1)
    sessions.main()
    rows = json.loads(out.read_text())["rows"]
    assert [(row["what"], row["batch"]) for row in rows] == [("session", 1), ("session", 2), ("floor", 1), ("floor", 2)]
    for row, floor in zip(rows[:2], rows[2:], strict=True):
        levels = SHAPES["tiny"].levels
        assert (row["context"], row["new_tokens"]) == ((600 // levels + 4) * levels + 2, 4 * levels + 1)
        assert row["same_items"] > 0.9
        assert floor["ms"] < floor["cold_ms"]
        assert floor["of_the_floor"] == pytest.approx(row["ms"] / floor["ms"])


def test_the_floor_of_a_continued_batch_grows_with_its_new_tokens() -> None:
    floors, case = FloorBench(torch.device("cpu")), Case(SHAPES["tiny"], 8, 2_000, 2)
    whole = floors.floor(case)
    assert floors.continued(case, 16, whole) < floors.continued(case, 1_500, whole)
