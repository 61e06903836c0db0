"""Keys and values of the contexts, in pages."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.model.decoder_config import DecoderConfig
from engine.settings import PAGE_TOKENS
from engine.state.zeros import zeros


class ContextKV:
    """One pool for all requests: per layer, keys and values ``[pages, kv_heads, PAGE_TOKENS, head_dim]``."""

    def __init__(self, config: DecoderConfig, pages: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (config.layers, 2, pages, config.kv_heads, PAGE_TOKENS, config.head_dim)
        self._layers = zeros(shape, device, dtype)

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        keys, values = self._layers[number].unbind(0)
        return keys, values

    def page(self, number: int) -> Tensor:
        """One page of all layers, ``[layers, 2, kv_heads, PAGE_TOKENS, head_dim]``."""
        return self._layers[:, :, number]

    def host_pages(self, pages: int) -> Tensor:
        """Memory on the host for so many pages, pinned where a CUDA device copies to it; ``[pages, *page]``.

        Raises MemoryError.
        """
        shape = (pages, *self.page(0).shape)
        try:
            return torch.empty(shape, dtype=self._layers.dtype, pin_memory=self._layers.is_cuda)
        except RuntimeError as error:  # of the allocators of the host, which have no error of their own
            raise MemoryError(str(error)) from error

    def clear(self, pages: NDArray[np.int32]) -> None:
        """Zero pages that hold NaN: kernels multiply the unused tail of a page by zero, and NaN survives that."""
        self._layers[:, :, torch.from_numpy(pages).to(self._layers.device)] = 0

    @property
    def nbytes(self) -> int:
        return self._layers.nbytes
