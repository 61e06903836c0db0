"""Products that finish what they compute, against float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.elementwise.triton_silu_mul import silu_mul
from kernels.linear import gated_product as twin
from kernels.linear.triton_gated_product import gated_product
from tests.kernels.device import CUDA_BFLOAT16, CUDA_FLOAT32, INTERPRETER, error, tolerance

SHAPES = [(1, 64, 40), (5, 72, 128), (130, 200, 136), (300, 1024, 3072), (257, 2048, 200), (64, 24, 384)]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


def operands(rows: int, depth: int, outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, depth, generator=generator)
    return x.to(dtype), (torch.randn(2 * outputs, depth, generator=generator) * depth**-0.5).to(dtype)


def expected(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = (x.double() @ weight.double().T).chunk(2, dim=1)
    return gate * gate.sigmoid() * up


@pytest.mark.parametrize(("device", "dtype"), [INTERPRETER, CUDA_FLOAT32, CUDA_BFLOAT16])
@pytest.mark.parametrize("shape", SHAPES)
def test_gates_let_their_inputs_through(device: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    x, weight = operands(*shape, dtype)
    kernel = (twin.gated_product if device == "cpu" else gated_product)(x.to(device), weight.to(device))
    assert error(kernel, expected(x, weight)) < 2 * tolerance(dtype)  # the product is rounded, too


@pytest.mark.gpu
@pytest.mark.skipif(not HOPPER, reason="needs a Hopper device")
@pytest.mark.parametrize("shape", [*SHAPES, (2000, 1024, 3072), (1024, 2048, 6144)])
def test_the_kernel_for_hopper_has_the_bits_of_a_product_and_a_gate(shape: tuple[int, int, int]) -> None:
    from kernels.linear.gluon_gated_product import gated_product as for_hopper

    x, weight = operands(*shape, torch.bfloat16)
    found = for_hopper(x.cuda(), weight.cuda())
    assert error(found, expected(x, weight)) < 2 * tolerance(torch.bfloat16)
    assert torch.equal(found, silu_mul(F.linear(x.cuda(), weight.cuda()))) or len(x) < 64  # few rows: split products
