"""Shape of a decoder, read from a Hugging Face ``config.json``; what we do not compute exactly is refused by name."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from engine.errors import ModelError

Family = Literal["qwen3", "qwen2", "llama"]
_FAMILIES: Mapping[str, Family] = {"qwen3": "qwen3", "qwen2": "qwen2", "llama": "llama"}
_QWEN3_HEAD_DIM = 128  # what Qwen3 means where its config names no head_dim
_WINDOW_FROM = 28  # what Qwen means where its config names no max_window_layers


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """The ``llama3`` stretching of low rotary frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Dense decoder with grouped-query attention, rotary embedding, RMS norm and a gated feed-forward block."""

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_positions: int
    tied_head: bool

    @property
    def qk_norm(self) -> bool:
        return self.family == "qwen3"

    @property
    def qkv_bias(self) -> bool:
        return self.family == "qwen2"

    @classmethod
    def load(cls, model_dir: Path) -> Self:
        """Read ``config.json``. Raises ``ModelError`` naming the file, the key or the unsupported feature."""
        raw = read_json(model_dir / "config.json")
        family = _FAMILIES.get(str(raw.get("model_type")))
        if family is None:
            raise ModelError(f"config.json: model_type {raw.get('model_type')!r} is not one of {', '.join(_FAMILIES)}")
        _refuse_unsupported(raw, family)
        heads, hidden = _positive(raw, "num_attention_heads"), _positive(raw, "hidden_size")
        theta, scaling = _rope(raw)
        config = cls(
            family=family,
            vocab_size=_positive(raw, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_positive(raw, "intermediate_size"),
            layers=_positive(raw, "num_hidden_layers"),
            heads=heads,
            kv_heads=_positive(raw, "num_key_value_heads", heads),
            head_dim=_positive(raw, "head_dim", _QWEN3_HEAD_DIM if family == "qwen3" else hidden // heads),
            norm_eps=_number(raw, "rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            max_positions=_positive(raw, "max_position_embeddings"),
            tied_head=_flag(raw, "tie_word_embeddings"),
        )
        if config.heads % config.kv_heads:
            raise ModelError(f"config.json: {heads} attention heads are no multiple of {config.kv_heads} key heads")
        if config.head_dim % 2:
            raise ModelError(f"config.json: head_dim {config.head_dim} is odd; the rotary embedding needs pairs")
        return config


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ``ModelError`` naming the file."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object")
    return value


def _refuse_unsupported(raw: Mapping[str, Any], family: Family) -> None:
    def refuse(key: str) -> ModelError:
        return ModelError(f"config.json: {key} = {raw[key]!r} is not supported")

    if raw.get("hidden_act", "silu") != "silu":
        raise refuse("hidden_act")
    for key in ("attention_bias", "mlp_bias", "quantization_config", "dual_chunk_attention_config"):
        if raw.get(key):
            raise refuse(key)
    layers = raw.get("layer_types")
    if layers is not None and not (isinstance(layers, list) and all(kind == "full_attention" for kind in layers)):
        raise refuse("layer_types")
    windowed = family != "llama" and _flag(raw, "use_sliding_window") and raw.get("sliding_window") is not None
    if (
        windowed
        and layers is None
        and _positive(raw, "max_window_layers", _WINDOW_FROM) < _positive(raw, "num_hidden_layers")
    ):
        raise refuse("sliding_window")


def _rope(raw: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Theta and scaling, from ``rope_parameters`` (transformers 5) or ``rope_theta`` with ``rope_scaling`` (before)."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        raise ModelError(f"config.json: rope parameters {rope!r} are not supported")
    theta = _number(rope, "rope_theta", _number(raw, "rope_theta", 10_000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ModelError(f"config.json: rope type {kind!r} is not supported")
    if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) not in (None, 1.0):
        raise ModelError("config.json: partial_rotary_factor other than 1 is not supported")
    if kind == "default":
        return theta, None
    original = rope.get("original_max_position_embeddings", raw.get("max_position_embeddings"))
    return theta, RopeScaling(
        factor=_number(rope, "factor"),
        low_freq_factor=_number(rope, "low_freq_factor"),
        high_freq_factor=_number(rope, "high_freq_factor"),
        original_max_positions=_positive(
            {"original_max_position_embeddings": original}, "original_max_position_embeddings"
        ),
    )


def _positive(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json: {key} must be a positive integer, not {value!r}")
    return value


def _flag(raw: Mapping[str, Any], key: str) -> bool:
    value = raw.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ModelError(f"config.json: {key} must be true or false, not {value!r}")
    return value


def _number(raw: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = raw.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ModelError(f"config.json: {key} must be a positive number, not {value!r}")
    return float(value)
