"""Large copies between host and device that hold up nobody else's work."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PIECE = 4 << 20
"""Bytes. In one piece, and from memory that is not pinned, a copy keeps other threads from launching for as long as it
takes. Memory for all of it cannot be pinned instead: that takes longer than the copy."""


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy of a contiguous host array on the device, on the current stream; ``array`` may be read-only."""
    if device.type != "cuda" or array.nbytes <= PIECE:
        return torch.tensor(array, device=device)
    kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
    tensor = torch.empty(array.shape, dtype=kind, device=device)
    source, target = array.reshape(-1).view(np.uint8), tensor.view(-1).view(torch.uint8)
    for piece, buffer, copied in _pieces(array.nbytes):
        copied.synchronize()  # what was in the buffer before has left it
        part = source[piece]
        np.copyto(buffer.numpy()[: len(part)], part)
        target[piece].copy_(buffer[: len(part)], non_blocking=True)
        copied.record()
    return tensor


def download(tensor: Tensor) -> NDArray[Any]:
    """A copy of a contiguous tensor on the host; waits for the current stream."""
    if tensor.device.type != "cuda" or tensor.nbytes <= PIECE:
        return tensor.cpu().numpy()
    array = np.empty(tensor.shape, torch.empty(0, dtype=tensor.dtype).numpy().dtype)
    source, target = tensor.view(-1).view(torch.uint8), array.reshape(-1).view(np.uint8)
    arrived: list[tuple[slice, Tensor, torch.cuda.Event]] = []
    for piece, buffer, copied in _pieces(tensor.nbytes):
        if len(arrived) == 2:
            _take(target, *arrived.pop(0))
        part = source[piece]
        buffer[: len(part)].copy_(part, non_blocking=True)
        copied.record()
        arrived.append((piece, buffer, copied))
    for each in arrived:
        _take(target, *each)
    return array


def _pieces(size: int) -> Iterator[tuple[slice, Tensor, torch.cuda.Event]]:
    """Ranges of bytes, each with one of two pinned buffers, which torch keeps for the next copy, and its event."""
    pinned = [
        (torch.empty(PIECE, dtype=torch.uint8, pin_memory=True), torch.cuda.Event())  # type: ignore[no-untyped-call]
        for _ in range(2)
    ]
    for number, begin in enumerate(range(0, size, PIECE)):
        yield slice(begin, min(begin + PIECE, size)), *pinned[number % 2]


def _take(target: NDArray[np.uint8], piece: slice, buffer: Tensor, copied: torch.cuda.Event) -> None:
    copied.synchronize()
    np.copyto(target[piece], buffer.numpy()[: piece.stop - piece.start])
