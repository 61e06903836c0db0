"""Qwen3, Qwen2 and Llama forward passes in float64: every sequence computed whole, no cache, no padding."""

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file

Array = NDArray[np.float64]

SCORES_AT_ONCE = 1 << 22
"""Attention scores held at once; more sequences than that allows are computed in turns."""


def softmax(x: Array) -> Array:
    """Over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def log_softmax(x: Array) -> Array:
    """Over the last axis."""
    shifted = x - x.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


class Decoder:
    """The weights of a Hugging Face model directory in float64. A variant that it does not compute: ``ValueError``."""

    def __init__(self, model_dir: Path) -> None:
        config = json.loads((model_dir / "config.json").read_text())
        if config["model_type"] not in ("qwen3", "qwen2", "llama") or config.get("hidden_act", "silu") != "silu":
            raise ValueError(f"the oracle does not compute {config['model_type']} with {config.get('hidden_act')}")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", "default") != "default" or config.get("use_sliding_window"):
            raise ValueError("the oracle computes plain rotary positions and full attention only")
        self.layers = int(config["num_hidden_layers"])
        self.heads = int(config["num_attention_heads"])
        self.kv_heads = int(config.get("num_key_value_heads") or self.heads)
        self.head_dim = int(config.get("head_dim") or config["hidden_size"] // self.heads)
        self.eps = float(config["rms_norm_eps"])
        self.theta = float(rope.get("rope_theta") or config["rope_theta"])
        self.weights: dict[str, Array] = {}
        for file in sorted(model_dir.glob("*.safetensors")):
            self.weights |= {name: tensor.double().numpy() for name, tensor in load_file(file).items()}
        if config.get("tie_word_embeddings"):
            self.weights["lm_head.weight"] = self.weights["model.embed_tokens.weight"]

    def logits(self, sequences: NDArray[np.int64]) -> Array:
        """Vocabulary logits ``[n, vocab]`` after the last token of ``n`` equally long sequences ``[n, length]``."""
        count, length = sequences.shape
        step = max(1, SCORES_AT_ONCE // (self.heads * length * length))
        return np.concatenate([self._forward(sequences[i : i + step]) for i in range(0, count, step)])

    def _forward(self, sequences: NDArray[np.int64]) -> Array:
        x = self.weights["model.embed_tokens.weight"][sequences]
        for layer in range(self.layers):
            name = f"model.layers.{layer}"
            x = x + self._attention(f"{name}.self_attn", self._norm(f"{name}.input_layernorm", x))
            x = x + self._mlp(f"{name}.mlp", self._norm(f"{name}.post_attention_layernorm", x))
        return np.asarray(self._norm("model.norm", x[:, -1]) @ self.weights["lm_head.weight"].T)

    def _linear(self, name: str, x: Array) -> Array:
        return np.asarray(x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0))

    def _norm(self, name: str, x: Array) -> Array:
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        return np.asarray(x / np.sqrt(mean_square + self.eps) * self.weights[f"{name}.weight"])

    def _mlp(self, name: str, x: Array) -> Array:
        gate = self._linear(f"{name}.gate_proj", x)
        return self._linear(f"{name}.down_proj", gate / (1.0 + np.exp(-gate)) * self._linear(f"{name}.up_proj", x))

    def _attention(self, name: str, x: Array) -> Array:
        count, length, _ = x.shape

        def heads(projection: str, number: int) -> Array:
            """``[n, number, length, head_dim]``"""
            split = self._linear(f"{name}.{projection}", x).reshape(count, length, number, self.head_dim)
            return split.transpose(0, 2, 1, 3)

        q, k, v = heads("q_proj", self.heads), heads("k_proj", self.kv_heads), heads("v_proj", self.kv_heads)
        if f"{name}.q_norm.weight" in self.weights:
            q, k = self._norm(f"{name}.q_norm", q), self._norm(f"{name}.k_norm", k)
        q, k = self._rotate(q), self._rotate(k)
        group = self.heads // self.kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(self.head_dim)
        scores[..., ~np.tri(length, dtype=bool)] = -np.inf
        mixed = (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(count, length, -1)
        return self._linear(f"{name}.o_proj", mixed)

    def _rotate(self, x: Array) -> Array:
        """Rotary positions over the two halves of a head."""
        half = self.head_dim // 2
        frequency = self.theta ** (-np.arange(half) / half)
        angle = np.arange(x.shape[2])[:, None] * frequency
        cos, sin = np.cos(angle), np.sin(angle)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@lru_cache(maxsize=4)
def load_decoder(model_dir: Path) -> Decoder:
    """The same object for the same directory: the oracle is asked request by request. Raises ``ValueError``."""
    return Decoder(model_dir)
