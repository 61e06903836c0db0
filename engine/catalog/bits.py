"""Flags as bits, the lowest bit of a byte first."""

import numpy as np
from numpy.typing import NDArray


def pack_bits(flags: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """uint8 ``[ceil(n / 8)]`` of bool ``[n]``; the bits beyond are 0."""
    return np.packbits(flags, bitorder="little")


def unpack_bits(bits: NDArray[np.uint8], count: int) -> NDArray[np.bool_]:
    """The first ``count`` flags, bool."""
    return np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)
