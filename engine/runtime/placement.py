"""Where a model runs and in which number formats."""

from dataclasses import dataclass
from typing import Self

import torch

from engine.errors import ModelError
from engine.settings import EngineSettings

FP8_CAPABILITY = (8, 9)
"""The first GPUs with float8 products."""


@dataclass(frozen=True, slots=True)
class Placement:
    """``dtype``: of activations, keys and values; ``fp8``: whether the layers multiply in float8."""

    device: torch.device
    dtype: torch.dtype
    fp8: bool

    @classmethod
    def of(cls, settings: EngineSettings) -> Self:
        """Raises ModelError where the device is absent or lacks what is asked of it."""
        name, fp8 = settings.device, settings.precision == "fp8"
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        elif name == "cuda" and not torch.cuda.is_available():
            raise ModelError("device is cuda, but torch finds no CUDA device")
        if fp8 and name == "cuda" and (found := torch.cuda.get_device_capability()) < FP8_CAPABILITY:
            raise ModelError(
                f"precision fp8 needs a GPU of compute capability {'{}.{}'.format(*FP8_CAPABILITY)} or newer; "
                f"this one has {'{}.{}'.format(*found)}"
            )
        bfloat16 = settings.precision == "bf16" or (settings.precision != "fp32" and name == "cuda")
        return cls(torch.device(name), torch.bfloat16 if bfloat16 else torch.float32, fp8)
