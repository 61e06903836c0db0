"""The beam policies of a batch as tensors; fixed, scheduled and margin are one form."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Per request, on the device: int32 ``[R]`` but ``margin`` float32 (infinite: none) and ``legal`` bool.

    ``widths``: int32 ``[R]`` for each level; ``out_widths`` and ``out_items`` bound them on the host: the rows that the
    batch's tensors have.
    """

    widths: tuple[Tensor, ...]
    out_widths: tuple[int, ...]
    margin: Tensor
    min_width: Tensor
    legal: Tensor
    max_per_leaf: Tensor
    top_k: Tensor
    out_items: int
