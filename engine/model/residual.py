"""The hidden state between the blocks of a decoder."""

from torch import Tensor

from engine.model.linear import Linear, Operand
from kernels import backend
from kernels.linear.scaled import Product


class Residual:
    """``hidden``: ``[T, H]``, changed in place; a float8 product is added to it by the next norm, as that reads it."""

    def __init__(self, hidden: Tensor, eps: float) -> None:
        self._hidden, self._eps = hidden, eps
        self._pending: Product | None = None

    def add(self, linear: Linear, x: Operand) -> None:
        """Add ``x @ linear.T``."""
        self._pending = linear.add_to(self._hidden, x)

    def operand(self, weight: Tensor, into: Linear) -> Operand:
        """The normed state as ``into`` takes it; ``weight``: of the norm, ``[H]``."""
        if not into.takes_fp8(len(self._hidden)):
            return self.normed(weight)
        x, self._hidden = backend.rms_norm_fp8(*self._parts(weight))
        return x

    def normed(self, weight: Tensor) -> Tensor:
        """The normed state."""
        x, self._hidden = backend.rms_norm(*self._parts(weight))
        return x

    def of(self, rows: Tensor) -> "Residual":
        """The state of some tokens only, when a norm has been taken."""
        return Residual(self._hidden[rows], self._eps)

    def _parts(self, weight: Tensor) -> tuple[Product, Tensor, float, Tensor | None]:
        """What a norm is called with."""
        pending, self._pending = self._pending, None
        if pending is None:
            return self._hidden, weight, self._eps, None
        return pending, weight, self._eps, self._hidden
