"""The one place that chooses between a Triton kernel and its torch twin. The engine calls only these."""

from kernels.attention.decode import beam_decode_attention
from kernels.attention.prefill import paged_prefill_attention
from kernels.elementwise.qk_norm_rope_write import qk_norm_rope_write
from kernels.elementwise.rms_norm import rms_norm
from kernels.elementwise.silu_mul import silu_mul
from kernels.selection.expand_select import Selection, expand_select
from kernels.selection.resolve import Resolved, resolve_leaves
from kernels.selection.tries import NO_ITEM, LevelTries

__all__ = [
    "NO_ITEM",
    "LevelTries",
    "Resolved",
    "Selection",
    "beam_decode_attention",
    "expand_select",
    "paged_prefill_attention",
    "qk_norm_rope_write",
    "resolve_leaves",
    "rms_norm",
    "silu_mul",
]
