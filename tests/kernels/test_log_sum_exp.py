"""The log-sum-exp of a product against float64."""

import pytest
import torch
from torch import Tensor

from kernels.linear import log_sum_exp as twin
from kernels.linear.triton_log_sum_exp import log_sum_exp, portable_log_sum_exp
from tests.kernels.device import CUDA_BFLOAT16, EVERYWHERE, INTERPRETER

SHAPES = [(1, 40, 8), (3, 300, 72), (130, 257, 64), (5, 1000, 200), (65, 128, 128)]
LARGE = [(900, 5003, 1024), (257, 151_936, 1024), (3, 151_936, 2048)]


def operands(rows: int, outputs: int, depth: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Logits some of which are far above the others, so that a wrong maximum shows."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, depth, generator=generator)
    weight = torch.randn(outputs, depth, generator=generator) * (3 * depth**-0.5)
    return x.to(dtype), weight.to(dtype)


def expected(x: Tensor, weight: Tensor) -> Tensor:
    return (x.double() @ weight.double().T).logsumexp(dim=-1)


@EVERYWHERE
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_that_of_all_logits(device: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    x, weight = operands(*shape, dtype)
    for kernel in (log_sum_exp, portable_log_sum_exp):
        found = kernel(x.to(device), weight.to(device))
        torch.testing.assert_close(found.double().cpu(), expected(x, weight), rtol=0, atol=1e-5)


def test_the_twin_goes_through_the_outputs_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin, "_CHUNK", 7)
    x, weight = operands(3, 40, 8, torch.float32)
    torch.testing.assert_close(twin.log_sum_exp(x, weight).double(), expected(x, weight), rtol=0, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", LARGE)
def test_a_whole_vocabulary(shape: tuple[int, int, int]) -> None:
    x, weight = (each.cuda() for each in operands(*shape, torch.bfloat16))
    torch.testing.assert_close(log_sum_exp(x, weight).double(), expected(x, weight), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("device", "dtype"), [INTERPRETER, CUDA_BFLOAT16])
def test_a_row_has_the_same_bits_whatever_the_others_are(device: str, dtype: torch.dtype) -> None:
    x, weight = (each.to(device) for each in operands(200, 600, 64, dtype))
    whole = log_sum_exp(x, weight)
    assert torch.equal(log_sum_exp(x[150:151].contiguous(), weight), whole[150:151])
    assert torch.equal(log_sum_exp(x[70:].contiguous(), weight), whole[70:])


@pytest.mark.filterwarnings("ignore:All-NaN|invalid value:RuntimeWarning")
@EVERYWHERE
def test_nan_stays_in_its_row(device: str, dtype: torch.dtype) -> None:
    x, weight = operands(3, 300, 16, dtype)
    x[1, 3] = torch.nan
    found = log_sum_exp(x.to(device), weight.to(device)).double().cpu()
    assert found[1].isnan()
    torch.testing.assert_close(found[::2], expected(x[::2], weight), rtol=0, atol=1e-5)
