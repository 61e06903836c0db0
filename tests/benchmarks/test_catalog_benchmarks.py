"""The programs that measure catalogs run, and what they say has a place on the page of results."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import catalog_scale, filters, freshness
from benchmarks.results import load
from docs.performance_catalog import filters_section, freshness_section, scale_section


def run(program: object, arguments: list[str], out: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", ["program", *arguments, "--out", str(out)])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    program.main()  # type: ignore[attr-defined]  # a module
    return load(out)


def test_a_change_is_in_the_answers_soon_after_its_publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freshness, "QUIET_S", 0.2)
    arguments = ["--items", "5000", "--deltas", "3", "--changes", "20", "--pause", "0.1"]
    report = run(freshness, [*arguments, "--model", "tiny", "--beam", "8", "--batch", "1"], tmp_path / "f", monkeypatch)
    row = report["rows"][0]
    assert row["deltas"] == 3
    assert 0 < row["added_max_ms"] < 10_000  # every one was seen; how soon is measured where nothing else runs
    assert "Target: within a second" in "\n".join(freshness_section("", report))


def test_filters_are_measured_and_every_answer_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "RUNS", 2)
    arguments = ["--items", "5000", "--model", "tiny", "--beam", "8"]
    report = run(filters, arguments, tmp_path / "f", monkeypatch)
    assert len(report["rows"]) == 3 + 7 * 4
    assert "| rare, fresh |" in "\n".join(filters_section("", report))


def test_every_step_of_a_catalog_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(catalog_scale, ["--items", "2000", "--strings", "2000"], tmp_path / "s", monkeypatch)
    cases = [row["case"] for row in report["rows"]]
    assert cases == ["2,000 items, uniform", "2,000 items, skewed", "2,000 items, uniform, string ids and titles"]
    page = "\n".join(scale_section("", report))
    assert all(f"| {case} |" in page for case in cases)
