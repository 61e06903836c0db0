"""The transport benchmark runs, small, and the page is written from what it leaves."""

from pathlib import Path

import pytest

from benchmarks import transport
from benchmarks.results import load
from docs.performance import performance_page

pytestmark = pytest.mark.kafka


@pytest.mark.usefixtures("installation")
def test_a_small_run_measures_the_service_beside_the_bare_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "transport.json"
    flags = ["--count", "10000", "--rounds", "1", "--rate", "50", "--seconds", "1", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["transport", *flags])
    transport.main()
    report = load(out)
    assert [(row["case"], row["what"]) for row in report["rows"]] == [
        (case, what) for case in ("drain", "50 requests/s") for what in ("service", "bare client")
    ]
    assert all(row["replies_per_s"] > 0 and row["cpu_us"] > 0 for row in report["rows"][:2])
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in report["rows"][2:])
    assert report["added_p50_ms"] == pytest.approx(report["rows"][2]["p50_ms"] - report["rows"][3]["p50_ms"])
    assert 1_000 <= report["request_bytes"] <= 1_048
    assert "## The transport alone" in performance_page(tmp_path)
