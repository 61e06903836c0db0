"""The matrices of a layer, dense or in float8; a float8 one may have its dense form too, where that is faster."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import backend
from kernels.linear.fp8_product import rowwise, tensorwise
from kernels.linear.kinds import MULTIPLE, Kinds, kinds_for
from kernels.linear.scaled import Fp8Matrix, Product

Operand = Tensor | Fp8Matrix
"""What a matrix is multiplied by, ``[T, in]``: quantised where ``takes_fp8`` says so."""


@dataclass(frozen=True, slots=True)
class DenseLinear:
    """``weight``: ``[out, in]``; ``bias``: ``[out]``."""

    weight: Tensor
    bias: Tensor | None = None

    def takes_fp8(self, rows: int) -> bool:
        return False

    def __call__(self, x: Operand) -> Product:
        return F.linear(_dense(x), self.weight, self.bias)

    def add_to(self, hidden: Tensor, x: Operand) -> Product | None:
        """Add the product to ``hidden`` while it is written."""
        hidden.addmm_(_dense(x), self.weight.t())
        return None

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


@dataclass(frozen=True, slots=True)
class Fp8Linear:
    """``weight``: a scale for each output; ``kinds``: what is fastest for how many rows; ``unit``: 1 on the device."""

    weight: Fp8Matrix
    bias: Tensor | None
    kinds: Kinds
    dense: DenseLinear | None
    unit: Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, dense: DenseLinear) -> "Fp8Linear":
        weight, bias = dense.weight, dense.bias
        out, inputs = weight.shape
        kinds = kinds_for(out, inputs, weight.device)
        unit = torch.ones((), device=weight.device)
        return cls(backend.quantise(weight), bias, kinds, dense if kinds.some_dense else None, unit, weight.dtype)

    def takes_fp8(self, rows: int) -> bool:
        return self.kinds(rows) != "dense"

    def __call__(self, x: Operand) -> Product:
        if isinstance(x, Tensor):
            return self._only_dense(x)(x)
        if self.bias is not None or self.kinds(len(x)) == "rowwise":
            return rowwise(x, self.weight, self.bias, self.dtype)
        return tensorwise(x, self.weight, self.unit, self.dtype)

    def add_to(self, hidden: Tensor, x: Operand) -> Product | None:
        """What is returned is not added to ``hidden`` yet: the next norm does it."""
        return self._only_dense(x).add_to(hidden, x) if isinstance(x, Tensor) else self(x)

    @property
    def nbytes(self) -> int:
        dense = 0 if self.dense is None else self.dense.nbytes
        return self.weight.values.nbytes + self.weight.scale.nbytes + dense

    def _only_dense(self, x: Tensor) -> DenseLinear:
        if self.dense is None:
            raise TypeError(f"{len(x)} rows must be quantised for this matrix")
        return self.dense


Linear = DenseLinear | Fp8Linear


def fp8_linear(dense: DenseLinear) -> Linear:
    """In float8 where the matrix has sides that such products take."""
    return dense if any(side % MULTIPLE for side in dense.weight.shape) else Fp8Linear.of(dense)


def quantised_for(linear: Linear, x: Tensor) -> Operand:
    """``x`` as ``linear`` takes it."""
    return backend.quantise(x) if linear.takes_fp8(len(x)) else x


def _dense(x: Operand) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError("the operand of a dense product is quantised")
    return x
