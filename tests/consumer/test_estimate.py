"""``recallstream estimate``: what it tells, and what it refuses."""

from pathlib import Path

import pytest

from consumer.cli.commands import EXIT_FAILURE, EXIT_USAGE
from consumer.cli.main import main
from tests.engine.tiny_models import TinyModel, write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(TinyModel((8, 8, 8)), tmp_path)


def estimate(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["estimate", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_memory_and_speed_are_told_for_every_batch_that_fits_the_limits(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = estimate(capsys, "--model", model, "--context", 300, "--width", 2048, "--batch", 8)
    assert "contexts of 300 tokens" in told
    rows = [line.split()[1] for line in told[told.index("requests/s") :].splitlines() if "│" in line]
    assert rows == ["1", "2"], "4 x 2048 rows are more than a batch may have"


def test_a_faster_device_is_told_to_be_faster(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = estimate(capsys, "--model", model, "--gpu", "l4", "--batch", 1)
    fast = estimate(capsys, "--model", model, "--gpu", "l4", "--batch", 1, "--tflops", 1e6, "--bandwidth-tb", 1e6)
    assert rate(fast) > rate(slow)


def rate(told: str) -> float:
    return float([line for line in told.splitlines() if "│" in line][-1].split("│")[-2])


def test_a_model_that_does_not_fit_is_an_error(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--model", str(model), "--memory-gb", "0.1"]) == EXIT_FAILURE
    assert "no device memory is left" in capsys.readouterr().err


def test_an_unknown_gpu_is_a_usage_error(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--model", str(model), "--gpu", "abacus"]) == EXIT_USAGE
    assert "gpu" in capsys.readouterr().err


def test_float8_is_told_to_be_smaller_and_faster(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = estimate(capsys, "--model", model, "--gpu", "l4", "--batch", 1, "--tflops", 1e-3)
    narrow = estimate(capsys, "--model", model, "--gpu", "l4", "--batch", 1, "--tflops", 1e-3, "--precision", "fp8")
    assert rate(narrow) > rate(wide)


def test_float8_is_refused_for_a_gpu_that_lacks_it(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--model", str(model), "--gpu", "a100", "--precision", "fp8"]) == EXIT_USAGE
    assert "float8" in capsys.readouterr().err
