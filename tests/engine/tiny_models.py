"""Tiny random checkpoints of the three architectures, written to disk as Hugging Face directories with ``sid.json``."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Architecture = Literal["qwen3", "qwen2", "llama"]
Weights = dict[str, NDArray[np.float32]]

TEXT_TOKENS = 16
"""Tokens below the SID tokens: the prompt's own."""

PROMPTS = {
    "default": {"prefix": [1], "before_item": [], "after_item": [], "suffix": [2]},
    "framed": {"prefix": [1, "hour", 3], "before_item": [4], "after_item": [5, 6], "suffix": ["region", 7, "hour"]},
    "bare": {"prefix": [], "before_item": [], "after_item": [], "suffix": []},
}
SLOTS = {"region": {"north": 8, "south": 9}, "hour": {"morning": 10, "night": 11}}


@dataclass(frozen=True, slots=True)
class TinyModel:
    """``sizes``: codes of each level. ``shared``: all levels use the same tokens. The rest is the decoder's shape."""

    sizes: tuple[int, ...]
    architecture: Architecture = "qwen3"
    seed: int = 0
    shared: bool = False
    tied: bool = False
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    hidden: int = 24
    sharpness: float = 2.0
    max_history_items: int = 12
    history_drop: int = 5

    @property
    def name(self) -> str:
        return f"{self.architecture}-{'x'.join(map(str, self.sizes))}-{self.seed}"

    @property
    def token_bases(self) -> tuple[int, ...]:
        if self.shared:
            return (TEXT_TOKENS,) * len(self.sizes)
        return tuple(TEXT_TOKENS + sum(self.sizes[:level]) for level in range(len(self.sizes)))

    @property
    def vocab(self) -> int:
        """The SID tokens end three tokens before the vocabulary does."""
        return 3 + max(base + size for base, size in zip(self.token_bases, self.sizes, strict=True))


def config_of(model: TinyModel) -> dict[str, Any]:
    kind = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}[model.architecture]
    config = {
        "architectures": [kind],
        "model_type": model.architecture,
        "hidden_size": model.hidden,
        "intermediate_size": 2 * model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "vocab_size": model.vocab,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": model.tied,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if model.architecture != "qwen2":
        config |= {"head_dim": model.head_dim, "attention_bias": False}
    return config


def sid_of(model: TinyModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "levels": [
            {"token_base": base, "size": size} for base, size in zip(model.token_bases, model.sizes, strict=True)
        ],
        "prompts": PROMPTS,
        "slots": SLOTS,
        "max_history_items": model.max_history_items,
        "history_drop": model.history_drop,
    }


def weights_of(model: TinyModel) -> Weights:
    """Random weights that spread the logits by about ``sharpness``, so that scores differ far more than by rounding."""
    random = np.random.default_rng(model.seed)
    head_dim = model.hidden // model.heads if model.architecture == "qwen2" else model.head_dim
    q, kv = model.heads * head_dim, model.kv_heads * head_dim

    def matrix(rows: int, columns: int, gain: float = 1.0) -> NDArray[np.float32]:
        return np.float32(gain / np.sqrt(columns)) * random.standard_normal((rows, columns), dtype=np.float32)

    def vector(size: int, mean: float) -> NDArray[np.float32]:
        return np.float32(mean) + np.float32(0.2) * random.standard_normal(size, dtype=np.float32)

    weights = {
        "model.embed_tokens.weight": matrix(model.vocab, model.hidden, model.sharpness),
        "model.norm.weight": vector(model.hidden, 1.0),
    }
    if not model.tied:
        weights["lm_head.weight"] = matrix(model.vocab, model.hidden, model.sharpness)
    for layer in range(model.layers):
        at = f"model.layers.{layer}"
        weights |= {
            f"{at}.input_layernorm.weight": vector(model.hidden, 1.0),
            f"{at}.post_attention_layernorm.weight": vector(model.hidden, 1.0),
            f"{at}.self_attn.q_proj.weight": matrix(q, model.hidden),
            f"{at}.self_attn.k_proj.weight": matrix(kv, model.hidden),
            f"{at}.self_attn.v_proj.weight": matrix(kv, model.hidden),
            f"{at}.self_attn.o_proj.weight": matrix(model.hidden, q),
            f"{at}.mlp.gate_proj.weight": matrix(2 * model.hidden, model.hidden),
            f"{at}.mlp.up_proj.weight": matrix(2 * model.hidden, model.hidden),
            f"{at}.mlp.down_proj.weight": matrix(model.hidden, 2 * model.hidden),
        }
        if model.architecture == "qwen3":
            weights |= {
                f"{at}.self_attn.q_norm.weight": vector(head_dim, 1.0),
                f"{at}.self_attn.k_norm.weight": vector(head_dim, 1.0),
            }
        if model.architecture == "qwen2":
            weights |= {
                f"{at}.self_attn.q_proj.bias": vector(q, 0.0),
                f"{at}.self_attn.k_proj.bias": vector(kv, 0.0),
                f"{at}.self_attn.v_proj.bias": vector(kv, 0.0),
            }
    return weights


def write_model(model: TinyModel, directory: Path, weights: Weights | None = None) -> Path:
    """Write the checkpoint, with other ``weights`` than its own where given; returns ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config_of(model)))
    (directory / "sid.json").write_text(json.dumps(sid_of(model)))
    save_file(
        weights if weights is not None else weights_of(model),
        str(directory / "model.safetensors"),
        metadata={"format": "pt"},
    )
    return directory
