"""The steps of a request are measured one by one, and the page says what each costs."""

from pathlib import Path

import pytest

from benchmarks import request_steps
from benchmarks.results import load
from docs.performance import performance_page


def test_a_small_run_measures_every_step_and_the_page_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "request_steps.json"
    monkeypatch.setattr("sys.argv", ["request_steps", "--count", "128", "--rounds", "1", "--out", str(out)])
    request_steps.main()
    report = load(out)
    assert [row["what"] for row in report["rows"]] == [*request_steps.STEPS]
    assert all(row["cpu_us"] > 0 for row in report["rows"])
    assert report["cpu_us"] == pytest.approx(sum(row["cpu_us"] for row in report["rows"]))
    page = performance_page(tmp_path)
    assert all(f"| {row['case']} | {row['what']} | {row['cpu_us']} |" in page for row in report["rows"])
