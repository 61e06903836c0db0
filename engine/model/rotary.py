"""Rotary position tables."""

import math

import torch
from torch import Tensor

from engine.model.decoder_config import DecoderConfig, RopeScaling


def rotary_tables(config: DecoderConfig, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """``cos`` and ``sin``, float32 ``[positions, head_dim / 2]``."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64)
    frequency = config.rope_theta ** -(half / config.head_dim)
    if config.rope_scaling is not None:
        frequency = _stretched(frequency, config.rope_scaling)
    # Checkpoints are trained with float32 frequencies and angles; at position 10,000 the difference shows.
    angle = torch.arange(positions, dtype=torch.float32)[:, None] * frequency.float()
    return angle.cos().to(device), angle.sin().to(device)


def _stretched(frequency: Tensor, scaling: RopeScaling) -> Tensor:
    """Long wavelengths by the whole factor, short ones not at all, a linear blend between."""
    turns = scaling.original_max_positions * frequency / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return frequency * (blend + (1 - blend) / scaling.factor)
