"""The one place that chooses between a Triton kernel and its torch twin. The engine calls only these."""

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

from kernels.attention import decode, prefill
from kernels.elementwise import qk_norm_rope_write as rope
from kernels.elementwise import quantise as quantisation
from kernels.elementwise import rms_norm as norm
from kernels.elementwise import silu_mul as gate
from kernels.linear import gated_product as gated
from kernels.linear import log_sum_exp as normaliser
from kernels.linear.scaled import Fp8Matrix, ScaledProduct
from kernels.selection import expand_select as selection
from kernels.selection import resolve
from kernels.selection.expand_select import Selection
from kernels.selection.resolve import Resolved
from kernels.selection.tries import NO_ITEM, LevelTries

__all__ = [
    "NO_ITEM",
    "LevelTries",
    "Resolved",
    "Selection",
    "beam_decode_attention",
    "beam_decode_attention_fp8",
    "expand_select",
    "gated_product",
    "log_sum_exp",
    "paged_prefill_attention",
    "qk_norm_rope_write",
    "quantise",
    "resolve_leaves",
    "rms_norm",
    "rms_norm_fp8",
    "silu_mul",
    "silu_mul_fp8",
]

P = ParamSpec("P")
T = TypeVar("T")


@cache
def _triton(module: str, name: str) -> Callable[..., Any]:
    """Loaded on first use: Triton exists only where there is a GPU to use it."""
    package, _, leaf = module.rpartition(".")
    kernel: Callable[..., Any] = getattr(import_module(f"{package}.triton_{leaf}"), name)
    return kernel


def _by_device(twin: Callable[P, T]) -> Callable[P, T]:
    """The twin for CPU tensors; for CUDA tensors the function of its name in the ``triton_`` file beside it."""

    @wraps(twin)
    def kernel(*args: P.args, **kwargs: P.kwargs) -> T:
        if isinstance(args[0], Tensor | Fp8Matrix | ScaledProduct) and args[0].is_cuda:
            result: T = _triton(twin.__module__, twin.__name__)(*args, **kwargs)
            return result
        return twin(*args, **kwargs)

    return kernel


beam_decode_attention = _by_device(decode.beam_decode_attention)
beam_decode_attention_fp8 = _by_device(decode.beam_decode_attention_fp8)
expand_select = _by_device(selection.expand_select)
gated_product = _by_device(gated.gated_product)
log_sum_exp = _by_device(normaliser.log_sum_exp)
paged_prefill_attention = _by_device(prefill.paged_prefill_attention)
resolve_leaves = _by_device(resolve.resolve_leaves)
qk_norm_rope_write = _by_device(rope.qk_norm_rope_write)
quantise = _by_device(quantisation.quantise)
rms_norm = _by_device(norm.rms_norm)
rms_norm_fp8 = _by_device(norm.rms_norm_fp8)
silu_mul = _by_device(gate.silu_mul)
silu_mul_fp8 = _by_device(gate.silu_mul_fp8)
