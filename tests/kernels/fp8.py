"""What a quantised matrix may differ from the exact one by."""

import torch
from torch import Tensor

from kernels.linear.scaled import FP8, FP8_MAX, Fp8Matrix, ScaledProduct


def assert_quantised(found: Fp8Matrix, exact: Tensor, slack: float = 1e-5) -> None:
    """``found`` is ``exact`` (float64) rounded to e4m3: to half a unit in the last place and ``slack``."""
    assert found.values.dtype == FP8
    values, scale = found.values.cpu().double(), found.scale.cpu().double()
    largest = exact.abs().amax(dim=1).clamp_min(1e-12)
    torch.testing.assert_close(scale, largest / FP8_MAX, rtol=slack, atol=0)
    half_unit = torch.maximum(exact.abs() / 16, scale[:, None] * 2**-10)
    assert ((values * scale[:, None] - exact).abs() <= half_unit * (1 + 16 * slack) + slack * exact.abs()).all()


def scaled_product(rows: int, columns: int, dtype: torch.dtype, device: str, seed: int = 0) -> ScaledProduct:
    """A random product whose scales span six powers of two."""
    random = torch.Generator().manual_seed(seed)
    values = 1e3 * torch.randn(rows, columns, generator=random)
    scales = [2.0 ** (6 * torch.rand(size, generator=random) - 12) for size in (rows, columns)]
    return ScaledProduct(values.to(device, dtype), *(scale.to(device) for scale in scales))


def exact(product: ScaledProduct) -> Tensor:
    return product.values.cpu().double() * product.rows.cpu().double()[:, None] * product.columns.cpu().double()
