"""The decoder's forward pass, for packed prompts and for beams; the same on every device."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from engine.model.decoder_config import DecoderConfig
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
        delta, hidden = F.embedding(prompts.tokens, self._weights.embedding), None
        begin = prompts.begin
        for number, layer in enumerate(self._weights.layers):
            pages = context.layer(number)
            x, hidden = backend.rms_norm(delta, layer.input_norm, self._config.norm_eps, hidden)
            q = self._qkv(layer, x, prompts.positions, *pages, prompts.slots)
            if number == len(self._weights.layers) - 1:  # from here only the last token's state is read
                q, hidden, begin = q[prompts.last], hidden[prompts.last], prompts.last_begin
            attended = backend.paged_prefill_attention(q, *pages, table.page_table, begin, table.length, self._scale)
            delta, hidden = self._after_attention(layer, attended.flatten(1), hidden)
        return self._final_norm(delta, hidden)

    def decode(self, tokens: Tensor, step: int, table: ContextTable, context: ContextKV, beams: BeamKV) -> Tensor:
        """Normed hidden state ``[R, W, H]`` after ``tokens`` (int32 ``[R, W]``), which beam step ``step`` chose."""
        rows, width = tokens.shape
        delta, hidden = F.embedding(tokens.flatten(), self._weights.embedding), None
        positions = (table.length + step).repeat_interleave(width, output_size=rows * width)
        slots = beams.slots(width)
        path, live = beams.path(step, width), beams.width
        for number, layer in enumerate(self._weights.layers):
            own_k, own_v = beams.layer(number)
            x, hidden = backend.rms_norm(delta, layer.input_norm, self._config.norm_eps, hidden)
            q = self._qkv(layer, x, positions, *beams.as_pages(number, step), slots)
            attended = backend.beam_decode_attention(
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
            delta, hidden = self._after_attention(layer, attended.view(rows * width, -1), hidden)
        return self._final_norm(delta, hidden).view(rows, width, -1)

    def _qkv(self, layer: LayerWeights, x: Tensor, positions: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> Tensor:
        return backend.qk_norm_rope_write(
            F.linear(x, layer.qkv, layer.qkv_bias),
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

    def _after_attention(self, layer: LayerWeights, attended: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Output projection and feed-forward block; the last addition is left to the next norm."""
        x, hidden = backend.rms_norm(F.linear(attended, layer.o), layer.post_norm, self._config.norm_eps, hidden)
        return F.linear(backend.silu_mul(F.linear(x, layer.gate_up)), layer.down), hidden

    def _final_norm(self, delta: Tensor, hidden: Tensor | None) -> Tensor:
        return backend.rms_norm(delta, self._weights.norm, self._config.norm_eps, hidden)[0]
