"""Weights of a decoder from safetensors, in the fused shapes that the forward pass multiplies by."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelError
from engine.model.decoder_config import DecoderConfig, read_json
from engine.model.linear import DenseLinear, Linear, fp8_linear

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. ``qkv`` stacks queries, keys, values; ``gate_up`` stacks gate, up."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """``embedding`` and ``head`` are ``[vocabulary, hidden]``, the same tensor where they are tied."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor


def load_weights(
    model_dir: Path, config: DecoderConfig, device: torch.device, dtype: torch.dtype, fp8: bool = False
) -> DecoderWeights:
    """Read one or several safetensors files. Raises ``ModelError`` naming the file or the tensor.

    ``fp8``: quantise the layers' matrices; embedding, head and norms stay in ``dtype``.
    """
    tensors = _Tensors(model_dir, device, dtype)
    hidden, q, kv = config.hidden_size, config.heads * config.head_dim, config.kv_heads * config.head_dim
    embedding = tensors.take("model.embed_tokens.weight", config.vocab_size, hidden)

    def layer(number: int) -> LayerWeights:
        def take(name: str, *shape: int) -> Tensor:
            return tensors.take(f"model.layers.{number}.{name}", *shape)

        def linear(*parts: Tensor, bias: Tensor | None = None) -> Linear:
            dense = DenseLinear(torch.cat(parts) if len(parts) > 1 else parts[0], bias)
            return fp8_linear(dense) if fp8 else dense

        attention, mlp = "self_attn", "mlp"
        projections = (("q_proj", q), ("k_proj", kv), ("v_proj", kv))
        biases = [take(f"{attention}.{name}.bias", rows) for name, rows in projections] if config.qkv_bias else []
        return LayerWeights(
            input_norm=take("input_layernorm.weight", hidden),
            qkv=linear(
                *(take(f"{attention}.{name}.weight", rows, hidden) for name, rows in projections),
                bias=torch.cat(biases) if biases else None,
            ),
            q_norm=take(f"{attention}.q_norm.weight", config.head_dim) if config.qk_norm else None,
            k_norm=take(f"{attention}.k_norm.weight", config.head_dim) if config.qk_norm else None,
            o=linear(take(f"{attention}.o_proj.weight", hidden, q)),
            post_norm=take("post_attention_layernorm.weight", hidden),
            gate_up=linear(
                *(take(f"{mlp}.{name}.weight", config.intermediate_size, hidden) for name in ("gate_proj", "up_proj"))
            ),
            down=linear(take(f"{mlp}.down_proj.weight", hidden, config.intermediate_size)),
        )

    weights = DecoderWeights(
        embedding=embedding,
        layers=tuple(layer(number) for number in range(config.layers)),
        norm=tensors.take("model.norm.weight", hidden),
        head=embedding if config.tied_head else tensors.take("lm_head.weight", config.vocab_size, hidden),
    )
    tensors.refuse_leftovers(["lm_head.weight"] if config.tied_head else [])
    return weights


class _Tensors:
    """The named tensors of a checkpoint; each is read once, on demand."""

    def __init__(self, model_dir: Path, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._files = dict(_tensor_files(model_dir))
        self._left = set(self._files)
        self._open: dict[Path, safe_open] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        path = self._files.get(name)
        if path is None:
            raise ModelError(f"the checkpoint has no tensor {name}")
        try:
            tensor: Tensor = _opened(path, self._open).get_tensor(name)  # type: ignore[no-untyped-call]  # no stubs
        except SafetensorError as error:
            raise ModelError(f"{path}: {error}") from error
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{path}: {name} has shape {tuple(tensor.shape)}, config.json says {shape}")
        if not tensor.is_floating_point():
            raise ModelError(f"{path}: {name} has dtype {tensor.dtype}")
        self._left.discard(name)
        return tensor.to(self._device, self._dtype)

    def refuse_leftovers(self, allowed: Iterable[str]) -> None:
        """A tensor that nobody used means an architecture that we would compute wrongly."""
        unused = sorted(n for n in self._left.difference(allowed) if not n.endswith("rotary_emb.inv_freq"))
        if unused:
            raise ModelError(f"the checkpoint has tensors that this architecture does not use: {', '.join(unused[:3])}")


def _tensor_files(model_dir: Path) -> Iterator[tuple[str, Path]]:
    if (model_dir / _SINGLE).exists():
        path = model_dir / _SINGLE
        for name in _opened(path, {}).keys():  # type: ignore[no-untyped-call]  # noqa: SIM118  (no stubs; no mapping)
            yield name, path
        return
    if not (model_dir / _INDEX).exists():
        raise ModelError(f"{model_dir}: neither {_SINGLE} nor {_INDEX} is there")
    weight_map = read_json(model_dir / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelError(f"{model_dir / _INDEX}: no weight_map")
    for name, file in weight_map.items():
        yield str(name), model_dir / str(file)


def _opened(path: Path, cache: dict[Path, safe_open]) -> safe_open:
    if path not in cache:
        try:
            cache[path] = safe_open(path, framework="pt")
        except FileNotFoundError:
            raise ModelError(f"{path}: no such file") from None
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path}: {error}") from error
    return cache[path]
