"""The decoder's forward pass, for packed prompts and for beams; the same on every device."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from engine.model.decoder_config import DecoderConfig
from engine.model.linear import DenseLinear, Operand, quantised_for
from engine.model.residual import Residual
from engine.model.weights import DecoderWeights, LayerWeights
from engine.state.beam_kv import BeamKV
from engine.state.context_kv import ContextKV
from kernels import backend


@dataclass(frozen=True, slots=True)
class ContextTable:
    """Where the contexts of ``R`` requests lie. ``page_table``: int32 ``[R, max_pages]``; ``length``: int32 ``[R]``."""

    page_table: Tensor
    length: Tensor


@dataclass(frozen=True, slots=True)
class PackedPrompts:
    """Prompts of different lengths as one token axis, ``T`` long.

    ``tokens``, ``positions``: int32 ``[T]``; ``slots``: int32 ``[T]``, page * page tokens + place in the page;
    ``begin``: int32 ``[R + 1]``; ``last``: int64 ``[R]``, index of each request's last token; ``last_begin``: int32
    ``[R + 1]``, as ``begin`` if each request had its last token only. Padding: requests without tokens come last, and
    tokens of no request after all others; these have a negative slot.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    begin: Tensor
    last: Tensor
    last_begin: Tensor


class Decoder:
    """Embedding, layers and final norm. ``cos``, ``sin``: rotary tables that cover every position used."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, cos: Tensor, sin: Tensor) -> None:
        self._config, self._weights = config, weights
        self._cos, self._sin = cos, sin
        self._scale = config.head_dim**-0.5

    def prefill(self, prompts: PackedPrompts, table: ContextTable, context: ContextKV) -> Tensor:
        """Write the prompts' keys and values to their pages; normed hidden state ``[R, H]`` of each last token."""
        state = self._state(prompts.tokens)
        begin = prompts.begin
        for number, layer in enumerate(self._weights.layers):
            pages = context.layer(number)
            q = self._qkv(layer, state, prompts.positions, *pages, prompts.slots)
            if number == len(self._weights.layers) - 1:  # from here only the last token's state is read
                q, state, begin = q[prompts.last], state.of(prompts.last), prompts.last_begin
            attended = backend.paged_prefill_attention(q, *pages, table.page_table, begin, table.length, self._scale)
            _after_attention(layer, quantised_for(layer.o, attended.flatten(1)), state)
        return state.normed(self._weights.norm)

    def decode(self, tokens: Tensor, step: int, table: ContextTable, context: ContextKV, beams: BeamKV) -> Tensor:
        """Normed hidden state ``[R, W, H]`` after ``tokens`` (int32 ``[R, W]``), which beam step ``step`` chose."""
        rows, width = tokens.shape
        state = self._state(tokens.flatten())
        positions = (table.length + step).repeat_interleave(width, output_size=rows * width)
        slots = beams.slots(width)
        path, live = beams.path(step, width), beams.width
        for number, layer in enumerate(self._weights.layers):
            own_k, own_v = beams.layer(number)
            q = self._qkv(layer, state, positions, *beams.as_pages(number, step), slots)
            narrow = layer.o.takes_fp8(rows * width)
            attend = backend.beam_decode_attention_fp8 if narrow else backend.beam_decode_attention
            attended = attend(
                q.view(rows, width, self._config.heads, -1),
                *context.layer(number),
                table.page_table,
                table.length,
                own_k[: step + 1],
                own_v[: step + 1],
                path,
                live,
                self._scale,
            )
            _after_attention(
                layer, attended.view(rows * width, -1) if isinstance(attended, Tensor) else attended, state
            )
        return state.normed(self._weights.norm).view(rows, width, -1)

    def _state(self, tokens: Tensor) -> Residual:
        return Residual(F.embedding(tokens, self._weights.embedding), self._config.norm_eps)

    def _qkv(
        self, layer: LayerWeights, state: Residual, positions: Tensor, k: Tensor, v: Tensor, slots: Tensor
    ) -> Tensor:
        return backend.qk_norm_rope_write(
            layer.qkv(state.operand(layer.input_norm, layer.qkv)),
            layer.q_norm,
            layer.k_norm,
            self._config.norm_eps,
            self._cos,
            self._sin,
            positions,
            k,
            v,
            slots,
        )


def _after_attention(layer: LayerWeights, attended: Operand, state: Residual) -> None:
    """Add the output projection, then the feed-forward block."""
    state.add(layer.o, attended)
    state.add(layer.down, _gated(layer, state.operand(layer.post_norm, layer.gate_up)))


def _gated(layer: LayerWeights, x: Operand) -> Operand:
    """The gated activation, as the matrix after it takes it. Gates have no bias: ``mlp_bias`` is refused."""
    if layer.down.takes_fp8(len(x)):
        return backend.silu_mul_fp8(layer.gate_up(x))
    if isinstance(x, Tensor) and isinstance(layer.gate_up, DenseLinear):
        return backend.gated_product(x, layer.gate_up.weight)
    return backend.silu_mul(layer.gate_up(x))
