"""Float8 matrices, and products whose scales the next kernel applies."""

from dataclasses import dataclass

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """``values * scale[:, None]``. ``values``: e4m3 ``[T, N]``; ``scale``: float32 ``[T]``."""

    values: Tensor
    scale: Tensor

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_cuda(self) -> bool:
        return self.values.is_cuda


@dataclass(frozen=True, slots=True)
class ScaledProduct:
    """``values * rows[:, None] * columns``. ``values``: ``[T, N]``; ``rows``: float32 ``[T]``; ``columns``: ``[N]``."""

    values: Tensor
    rows: Tensor
    columns: Tensor

    @property
    def is_cuda(self) -> bool:
        return self.values.is_cuda


Product = Tensor | ScaledProduct
"""What a matrix product returns."""


def values_of(product: Product) -> Tensor:
    """The elements as they lie in memory."""
    return product if isinstance(product, Tensor) else product.values


def in_float32(product: Product) -> Tensor:
    """The elements with their scales applied."""
    if isinstance(product, Tensor):
        return product.float()
    return product.values.float() * product.rows[:, None] * product.columns


def scales_of(product: Product, absent: Tensor) -> tuple[Tensor, Tensor]:
    """Scales of the rows and of the columns; ``absent`` in their place where there are none."""
    return (absent, absent) if isinstance(product, Tensor) else (product.rows, product.columns)
