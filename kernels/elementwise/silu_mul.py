"""The gated activation of the feed-forward block."""

import torch.nn.functional as F
from torch import Tensor

from kernels.elementwise.quantise import quantise
from kernels.linear.scaled import Fp8Matrix, Product, in_float32, values_of


def silu_mul(gate_up: Product) -> Tensor:
    """``silu(gate) * up`` of ``gate_up`` = ``[T, 2 I]`` (gate first); returns ``[T, I]``, computed in float32."""
    return _gated(gate_up).to(values_of(gate_up).dtype)


def silu_mul_fp8(gate_up: Product) -> Fp8Matrix:
    """As ``silu_mul``, quantised instead of rounded."""
    return quantise(_gated(gate_up))


def _gated(gate_up: Product) -> Tensor:
    gate, up = in_float32(gate_up).chunk(2, dim=-1)
    return F.silu(gate) * up
