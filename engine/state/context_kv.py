"""Keys and values of the contexts, in pages."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.model.decoder_config import DecoderConfig
from engine.settings import PAGE_TOKENS


class ContextKV:
    """One pool for all requests: per layer, keys and values ``[pages, kv_heads, PAGE_TOKENS, head_dim]``."""

    def __init__(self, config: DecoderConfig, pages: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (config.layers, 2, pages, config.kv_heads, PAGE_TOKENS, config.head_dim)
        self._layers = _zeros(shape, device, dtype)

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        keys, values = self._layers[number].unbind(0)
        return keys, values

    def clear(self, pages: NDArray[np.int32]) -> None:
        """Zero pages that hold NaN: kernels multiply the unused tail of a page by zero, and NaN survives that."""
        self._layers[:, :, torch.from_numpy(pages).to(self._layers.device)] = 0

    @property
    def nbytes(self) -> int:
        return self._layers.nbytes


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeroed: masked keys still multiply their values. On the CPU memory is committed only where it is written."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    lazy = np.zeros(shape, dtype=np.float32 if dtype == torch.float32 else np.int16)
    return torch.from_numpy(lazy).view(dtype)
