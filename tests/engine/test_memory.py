"""What a model costs before it is loaded, against what it takes when it is."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.errors import ModelError
from engine.model.decoder_config import DecoderConfig
from engine.model.spec import ModelSpec
from engine.model.weights import load_weights
from engine.runtime.cost import Cost
from engine.runtime.memory import CPU_PAGES, context_pages, pages_in
from engine.runtime.roofline import DEVICES, Roofline
from engine.settings import EngineSettings
from engine.state.beam_kv import BeamMemory
from engine.state.context_kv import ContextKV
from tests.engine.tiny_models import TinyModel, write_model

CPU = torch.device("cpu")


def cost_of(directory: Path) -> tuple[ModelSpec, Cost]:
    spec = ModelSpec.load(directory)
    return spec, Cost(spec.decoder, spec.level_sizes, itemsize=4)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_and_caches_take_the_bytes_that_were_told(tied: bool, fp8: bool, tmp_path: Path) -> None:
    model = TinyModel((8, 9, 10), layers=3, tied=tied, hidden=32)
    spec, cost = cost_of(write_model(model, tmp_path))
    weights = load_weights(tmp_path, spec.decoder, CPU, torch.float32, fp8)
    embeddings = [weights.embedding, *([] if tied else [weights.head])]
    matrices = [matrix for layer in weights.layers for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    told = replace(cost, fp8=fp8).weight_bytes
    assert told == sum(each.nbytes for each in embeddings) + sum(each.nbytes for each in matrices)
    assert cost.page_bytes * 5 == ContextKV(spec.decoder, 5, CPU, torch.float32).nbytes
    assert cost.context_bytes(129) == 2 * cost.page_bytes
    assert cost.beam_bytes(40) == BeamMemory(spec.decoder, 2, 40, CPU, torch.float32).nbytes


def test_the_pool_takes_its_share_of_what_batches_and_graphs_leave(tmp_path: Path) -> None:
    _, cost = cost_of(write_model(TinyModel((8, 8)), tmp_path))
    settings = EngineSettings(model=tmp_path, memory_fraction=0.5, max_graphs=10)
    reserved = cost.work_bytes(settings) + cost.graph_bytes(settings)
    assert pages_in(reserved + 20 * cost.page_bytes, cost, settings) == 10
    without = settings.model_copy(update={"graphs": False})
    assert cost.graph_bytes(without) == 0
    assert pages_in(cost.work_bytes(settings) + 20 * cost.page_bytes, cost, without) == 10


def test_no_memory_for_a_single_page_is_a_model_error_that_says_what_to_lower(tmp_path: Path) -> None:
    _, cost = cost_of(write_model(TinyModel((8, 8)), tmp_path))
    with pytest.raises(ModelError, match="max_batch_tokens"):
        pages_in(1 << 20, cost, EngineSettings(model=tmp_path))


def test_a_pool_that_is_set_is_taken_as_it_is_and_the_cpu_has_a_default(tmp_path: Path) -> None:
    spec, _ = cost_of(write_model(TinyModel((8, 8)), tmp_path))
    assert context_pages(spec, EngineSettings(model=tmp_path, context_pages=7), CPU, torch.float32) == 7
    assert context_pages(spec, EngineSettings(model=tmp_path), CPU, torch.float32) == CPU_PAGES


QWEN3_1_7B = DecoderConfig(
    family="qwen3",
    vocab_size=151_936,
    hidden_size=2048,
    intermediate_size=6144,
    layers=28,
    heads=16,
    kv_heads=8,
    head_dim=128,
    norm_eps=1e-6,
    rope_theta=1e6,
    rope_scaling=None,
    max_positions=40_960,
    tied_head=True,
)


@pytest.mark.parametrize(
    ("context", "batch", "prefill_ms", "decode_ms"),
    [
        (1000, 1, 5.7, 5.5),
        (1000, 4, 21.5, 12.4),
        (1000, 8, 40.9, 23.7),
        (5000, 1, 29.6, 7.1),
        (5000, 4, 117.0, 17.6),
        (5000, 8, 235.1, 33.4),
    ],
)
def test_expected_times_are_within_a_quarter_of_those_measured_on_an_h200(
    context: int, batch: int, prefill_ms: float, decode_ms: float
) -> None:
    roofline = Roofline(Cost(QWEN3_1_7B, (8192,) * 3, itemsize=2), DEVICES["h200"])
    prefill, decode = roofline.prefill_s(batch, context) * 1e3, roofline.decode_s(batch, context, 256) * 1e3
    assert prefill == pytest.approx(prefill_ms, rel=0.25)
    assert decode == pytest.approx(decode_ms, rel=0.25)
    assert roofline.requests_per_s(batch, context, 256) == pytest.approx(batch * 1e3 / (prefill + decode))
