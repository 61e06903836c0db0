"""Decoders of known shapes with random weights, as model directories that the engine and transformers both load."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.settings import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3 decoder with tied embeddings, and SIDs of ``levels`` codes below ``codes`` at the vocabulary's end."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int = 151_936
    codes: int = 8_192
    levels: int = 3

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """``(out, in)`` of a layer's four matrices: queries, keys and values; output; gate and up; down."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (q + 2 * kv, self.hidden), (self.hidden, q), (2 * self.inner, self.hidden), (self.hidden, self.inner)

    @property
    def token_bases(self) -> tuple[int, ...]:
        return tuple(self.vocab - self.codes * (self.levels - level) for level in range(self.levels))

    @property
    def parameters(self) -> int:
        norms = 2 * self.hidden + 2 * self.head_dim
        layer = sum(out * inputs for out, inputs in self.products) + norms
        return self.vocab * self.hidden + self.layers * layer + self.hidden


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("qwen3-0.6b", 1024, 28, 16, 8, 128, 3072),
        Shape("qwen3-1.7b", 2048, 28, 16, 8, 128, 6144),
        Shape("qwen3-4b", 2560, 36, 32, 8, 128, 9728),
        Shape("tiny", 32, 2, 4, 2, 8, 48, vocab=256, codes=64),  # runs everywhere in a moment; says nothing of speed
    )
}


def pages_for(tokens: int) -> int:
    """Pages that a context takes."""
    return -(-tokens // PAGE_TOKENS)


def write_model(shape: Shape, directory: Path, device: torch.device, seed: int = 0) -> Path:
    """Write the model directory, weights in bfloat16; returns ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(_config(shape)))
    (directory / "sid.json").write_text(json.dumps(_sid(shape)))
    save_file(_weights(shape, device, seed), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }


def _sid(shape: Shape) -> dict[str, object]:
    """A prompt of one token, the items, one token: a history of 1,666 items is a context of 5,000 tokens."""
    return {
        "id": shape.name,
        "levels": [{"token_base": base, "size": shape.codes} for base in shape.token_bases],
        "prompts": {"default": {"prefix": [0], "suffix": [1]}},
        "max_history_items": 10_000,
        "history_drop": 1_000,
    }


def _weights(shape: Shape, device: torch.device, seed: int) -> dict[str, Tensor]:
    random = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        values = torch.randn(rows, columns, generator=random, device=device, dtype=torch.bfloat16)
        return values.mul_(columns**-0.5).cpu()

    def ones(size: int) -> Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights = {"model.embed_tokens.weight": matrix(shape.vocab, shape.hidden), "model.norm.weight": ones(shape.hidden)}
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        weights |= {
            f"{at}.input_layernorm.weight": ones(shape.hidden),
            f"{at}.post_attention_layernorm.weight": ones(shape.hidden),
            f"{at}.self_attn.q_proj.weight": matrix(q, shape.hidden),
            f"{at}.self_attn.k_proj.weight": matrix(kv, shape.hidden),
            f"{at}.self_attn.v_proj.weight": matrix(kv, shape.hidden),
            f"{at}.self_attn.o_proj.weight": matrix(shape.hidden, q),
            f"{at}.self_attn.q_norm.weight": ones(shape.head_dim),
            f"{at}.self_attn.k_norm.weight": ones(shape.head_dim),
            f"{at}.mlp.gate_proj.weight": matrix(shape.inner, shape.hidden),
            f"{at}.mlp.up_proj.weight": matrix(shape.inner, shape.hidden),
            f"{at}.mlp.down_proj.weight": matrix(shape.hidden, shape.inner),
        }
    return weights
