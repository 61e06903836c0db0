"""The forward pass on packed prompts and beams against transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.model.decoder import ContextTable, Decoder
from engine.model.head import LevelHead
from engine.model.rotary import rotary_tables
from engine.model.spec import LevelSpec, ModelSpec
from engine.model.weights import load_weights
from engine.runtime.prefill_input import PrefillShape, pack_prompts
from engine.state.beam_kv import BeamKV, BeamMemory
from engine.state.context_kv import ContextKV
from engine.state.page_pool import PageLease, PagePool
from tests.engine.tiny_models import Architecture, TinyModel, config_of, write_model

CPU = torch.device("cpu")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def rewrite_config(directory: Path, model: TinyModel, **changes: Any) -> Path:
    """A written model with other keys in its ``config.json``; None takes a key away."""
    config = config_of(model) | changes
    (directory / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if value is not None})
    )
    return directory


class Loaded:
    """A decoder with a pool of its own."""

    def __init__(self, directory: Path) -> None:
        self.spec = ModelSpec.load(directory)
        self.config = self.spec.decoder
        weights = load_weights(directory, self.config, CPU, torch.float32)
        self.decoder = Decoder(self.config, weights, *rotary_tables(self.config, 512, CPU))
        self.head = LevelHead(weights.head, [LevelSpec(token_base=0, size=self.config.vocab_size)])
        self.context = ContextKV(self.config, 32, CPU, torch.float32)
        self.pool = PagePool(32)
        self.leases: list[PageLease] = []

    @torch.inference_mode()
    def prefill(self, prompts: list[np.ndarray]) -> tuple[Tensor, ContextTable]:
        """Vocabulary logits after each prompt, ``[R, vocabulary]``."""
        self.leases = [self.pool.lease(-(-len(tokens) // 128)) for tokens in prompts]
        pages = [lease.pages for lease in self.leases]
        shape = PrefillShape(sum(map(len, prompts)), len(prompts), max(map(len, pages)))
        packed, table = shape.over(pack_prompts(shape, prompts, [0] * len(prompts), pages, CPU))
        return self.head.logits(self.decoder.prefill(packed, table, self.context), 0), table

    @torch.inference_mode()
    def decode(self, tokens: Tensor, step: int, table: ContextTable, beams: BeamKV) -> Tensor:
        return self.head.logits(self.decoder.decode(tokens.int(), step, table, self.context, beams), 0)


@torch.inference_mode()
def reference(directory: Path, sequences: list[np.ndarray]) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return torch.stack([model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0, -1] for tokens in sequences])


def prompts_of(lengths: tuple[int, ...], vocab: int) -> list[np.ndarray]:
    random = np.random.default_rng(len(lengths))
    return [random.integers(0, vocab, length).astype(np.int32) for length in lengths]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
def test_packed_prompts_have_the_logits_of_transformers(architecture: Architecture, tied: bool, tmp_path: Path) -> None:
    model = TinyModel((9, 5), architecture, tied=tied, layers=3)
    loaded = Loaded(write_model(model, tmp_path))
    prompts = prompts_of((1, 5, 128, 129, 300), model.vocab)
    torch.testing.assert_close(loaded.prefill(prompts)[0], reference(tmp_path, prompts), atol=1e-4, rtol=0)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_llama3_rope_scaling_is_that_of_transformers(key: str, tmp_path: Path) -> None:
    model = TinyModel((9, 5), "llama", head_dim=16)
    directory = write_model(model, tmp_path)
    rope = LLAMA3 | ({"rope_theta": 500.0} if key == "rope_parameters" else {})
    rewrite_config(directory, model, **{key: rope, "rope_theta": None if key == "rope_parameters" else 500.0})
    prompts = prompts_of((3, 290), model.vocab)
    torch.testing.assert_close(Loaded(directory).prefill(prompts)[0], reference(tmp_path, prompts), atol=1e-4, rtol=0)


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
def test_beams_read_their_ancestors_through_the_path(architecture: Architecture, tmp_path: Path) -> None:
    """Three decode steps with reordered, branching and dying beams: as if every beam were a sequence of its own."""
    model = TinyModel((9, 5), architecture)
    loaded = Loaded(write_model(model, tmp_path))
    prompts = prompts_of((4, 131), model.vocab)
    _, table = loaded.prefill(prompts)
    beams = BeamMemory(loaded.config, 3, 8, CPU, torch.float32).beams(2, 4)
    sequences = [[prompt] for prompt in prompts]
    random = np.random.default_rng(5)
    for step, (widths, before) in enumerate([((3, 2), (1, 1)), ((2, 4), (3, 2)), ((4, 3), (2, 4))]):
        rows = max(widths)
        parents = np.stack([random.integers(0, alive, rows) for alive in before]).astype(np.int32)
        tokens = random.integers(0, model.vocab, (2, rows))
        beams.advance(step, torch.from_numpy(parents), torch.tensor(widths, dtype=torch.int32))
        logits = loaded.decode(torch.from_numpy(tokens), step, table, beams)
        for r, width in enumerate(widths):
            sequences[r] = [np.append(sequences[r][parents[r, b]], tokens[r, b]) for b in range(width)]
            torch.testing.assert_close(logits[r, :width], reference(tmp_path, sequences[r]), atol=1e-4, rtol=0)


def test_the_level_head_takes_its_rows_and_log_z_the_whole_vocabulary() -> None:
    random = torch.Generator().manual_seed(0)
    rows, hidden = torch.randn((50, 6), generator=random), torch.randn((2, 3, 6), generator=random)
    head = LevelHead(rows, [LevelSpec(token_base=10, size=4), LevelSpec(token_base=10, size=40)])
    logits = hidden.double() @ rows.double().T
    np.testing.assert_allclose(head.logits(hidden, 0), logits[..., 10:14], atol=1e-5)
    np.testing.assert_allclose(head.logits(hidden, 1), logits[..., 10:50], atol=1e-5)
    np.testing.assert_allclose(head.log_z(hidden), logits.logsumexp(-1), atol=1e-5)
