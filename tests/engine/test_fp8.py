"""Precision fp8: float8 weights and activations, on the CPU through the twins and on a device."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.errors import ModelError
from engine.model.decoder_config import DecoderConfig
from engine.model.linear import DenseLinear, Fp8Linear, fp8_linear, quantised_for
from engine.model.residual import Residual
from engine.model.weights import load_weights
from engine.recall_engine import RecallEngine
from engine.request import BeamPolicy, RecallRequest, RecallResult
from engine.runtime.placement import Placement
from engine.settings import EngineSettings
from kernels.linear.kinds import DEFAULT, Kinds, kinds_for
from kernels.linear.scaled import FP8, ScaledProduct, in_float32
from tests.engine.strategies import catalog_of
from tests.engine.test_cuda import items_of
from tests.engine.tiny_models import Architecture, TinyModel, write_model

CPU = torch.device("cpu")
BY_ROWS = Kinds(((2, "dense"), (4, "tensorwise"), (None, "rowwise")))


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def model_of(architecture: Architecture = "qwen3") -> TinyModel:
    return TinyModel((40, 16, 16), architecture, layers=3, heads=8, kv_heads=4, head_dim=32, hidden=256)


def recall(
    directory: Path, model: TinyModel, lengths: Sequence[int] = (3, 10, 12, 1), **settings: Any
) -> list[RecallResult]:
    engine = RecallEngine(EngineSettings(model=directory, context_pages=64, max_width=64, **settings))
    engine.catalogs.stage(catalog_of(model.name, model.sizes, items_of(model)[:2000]))
    engine.catalogs.activate("v1")
    engine.warm_up()
    random = np.random.default_rng(4)
    histories = [random.integers(0, 2000, length) for length in lengths]
    answers = engine.recall([RecallRequest(BeamPolicy((32, 64, 64)), 20, history=history) for history in histories])
    found = [answer for answer in answers if isinstance(answer, RecallResult)]
    assert len(found) == len(histories)
    return found


def distance(ours: list[RecallResult], theirs: list[RecallResult]) -> float:
    """Root mean square of the differences between the scores that items have in both."""
    differences: list[float] = []
    for a, b in zip(ours, theirs, strict=True):
        known = dict(zip(b.items, b.scores, strict=True))
        differences += [score - known[item] for item, score in zip(a.items, a.scores, strict=True) if item in known]
    return float(np.sqrt(np.mean(np.square(differences))))


def overlap(ours: list[RecallResult], theirs: list[RecallResult]) -> float:
    return float(np.mean([len(set(a.items) & set(b.items)) / 20 for a, b in zip(ours, theirs, strict=True)]))


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
def test_answers_are_nearly_those_of_float32_and_scores_show_the_rounding(
    architecture: Architecture, tmp_path: Path
) -> None:
    model = model_of(architecture)
    directory = write_model(model, tmp_path)
    exact, found = (recall(directory, model, device="cpu", precision=precision) for precision in ("fp32", "fp8"))
    assert overlap(found, exact) > 0.7
    difference = max(abs(a.scores[0] - b.scores[0]) for a, b in zip(found, exact, strict=True))
    assert 1e-3 < difference < 1


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 40])
@pytest.mark.parametrize("bias", [None, randn(48, seed=3)])
def test_every_kind_of_product_is_the_matrix_product_up_to_rounding(rows: int, bias: Tensor | None) -> None:
    dense = DenseLinear(randn(48, 64), bias)
    linear = replace(Fp8Linear.of(dense), kinds=BY_ROWS, dense=dense)
    x = randn(rows, 64, seed=1)
    operand = quantised_for(linear, x)
    assert isinstance(operand, Tensor) == (rows <= 2)
    product = linear(operand)
    assert isinstance(product, ScaledProduct) == (2 < rows <= 4 and bias is None)
    expected = x @ dense.weight.T + (0 if bias is None else bias)
    error = (in_float32(product) - expected).norm() / expected.norm()
    assert error < (1e-6 if rows <= 2 else 0.05)


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_the_state_is_the_same_whoever_adds_the_product(rows: int) -> None:
    """Dense products add themselves, of float8 ones the next norm does; two additions in a row lose none."""
    dense = DenseLinear(randn(48, 64))
    linear = replace(Fp8Linear.of(dense), kinds=BY_ROWS, dense=dense)
    hidden, x, weight = randn(rows, 48), randn(rows, 64, seed=1), randn(48, seed=2)
    state = Residual(hidden.clone(), 1e-6)
    for _ in range(2):
        state.add(linear, quantised_for(linear, x))
        normed = state.normed(weight)
    expected = hidden + 2 * in_float32(linear(quantised_for(linear, x)))
    expected = expected / (expected.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    torch.testing.assert_close(normed, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(state.of(torch.tensor([rows - 1])).normed(weight), expected[-1:], atol=1e-5, rtol=1e-5)


def test_the_layers_hold_one_byte_an_element_and_the_rest_stays_as_it_was(tmp_path: Path) -> None:
    model = model_of()
    directory = write_model(model, tmp_path)
    weights = load_weights(directory, DecoderConfig.load(directory), CPU, torch.float32, fp8=True)
    assert weights.embedding.dtype == weights.head.dtype == weights.norm.dtype == torch.float32
    for layer in weights.layers:
        for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down):
            assert isinstance(matrix, Fp8Linear)
            assert matrix.dense is None
            assert matrix.weight.values.dtype == FP8
            assert matrix.nbytes == matrix.weight.values.numel() + 4 * len(matrix.weight)


def test_a_matrix_with_a_side_that_float8_products_do_not_take_stays_dense() -> None:
    assert isinstance(fp8_linear(DenseLinear(randn(24, 64))), DenseLinear)
    assert isinstance(fp8_linear(DenseLinear(randn(64, 24))), DenseLinear)
    assert isinstance(fp8_linear(DenseLinear(randn(32, 64))), Fp8Linear)


def test_an_operand_in_the_wrong_form_is_refused() -> None:
    dense = DenseLinear(randn(32, 64))
    linear = Fp8Linear.of(dense)
    with pytest.raises(TypeError, match="must be quantised"):
        linear(randn(3, 64))
    with pytest.raises(TypeError, match="is quantised"):
        dense(quantised_for(linear, randn(3, 64)))


def test_a_kind_holds_up_to_its_most_rows() -> None:
    assert [BY_ROWS(rows) for rows in (1, 2, 3, 4, 5, 10**6)] == ["dense"] * 2 + ["tensorwise"] * 2 + ["rowwise"] * 2
    assert kinds_for(48, 64, CPU) == DEFAULT


@pytest.mark.parametrize(("capability", "refused"), [((8, 0), True), ((8, 9), False), ((9, 0), False)])
def test_a_gpu_without_float8_products_is_refused_by_name(
    capability: tuple[int, int], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    settings = EngineSettings(model=Path("m"), precision="fp8")
    if refused:
        with pytest.raises(ModelError, match=r"fp8 needs a GPU of compute capability 8\.9 .* has 8\.0"):
            Placement.of(settings)
    else:
        assert Placement.of(settings) == Placement(torch.device("cuda"), torch.bfloat16, True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
def test_the_device_is_no_farther_from_float32_than_the_cpu_is_and_graphs_answer_as_eager_runs_do(
    architecture: Architecture, tmp_path: Path
) -> None:
    model = model_of(architecture)
    directory = write_model(model, tmp_path)
    lengths = [*range(1, 13)] * 2
    exact, rounded = (recall(directory, model, lengths, device="cpu", precision=each) for each in ("fp32", "fp8"))
    graphed, eager = (
        recall(directory, model, lengths, device="cuda", precision="fp8", graphs=graphs) for graphs in (True, False)
    )
    assert overlap(graphed, exact) > 0.7
    assert overlap(graphed, eager) > 0.9
    assert distance(graphed, exact) < 1.3 * distance(rounded, exact)  # both round, and not alike
    assert distance(graphed, rounded) < distance(rounded, exact)
