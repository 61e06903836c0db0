"""Keys and values of the decoded tokens, and the path by which a beam reads its ancestors'."""

from math import prod

import torch
from torch import Tensor

from engine.model.decoder_config import DecoderConfig
from engine.state.zeros import zeros


class BeamMemory:
    """Room for the beams of one batch after another: ``rows`` beams (requests * width), ``steps`` decoded tokens."""

    def __init__(self, config: DecoderConfig, steps: int, rows: int, device: torch.device, dtype: torch.dtype) -> None:
        self._layers, self._steps = config.layers, steps
        self._token = (config.kv_heads, config.head_dim)
        self._memory = zeros((config.layers * 2 * steps * rows, *self._token), device, dtype)

    def beams(self, requests: int, width: int) -> "BeamKV":
        """State for a batch; it takes the room of the batch before."""
        shape = (self._layers, 2, self._steps, requests, width)
        return BeamKV(self._memory[: prod(shape)].view(*shape, *self._token))

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes


class BeamKV:
    """State of the beams of one batch, over ``kv``: ``[layers, 2, steps, R, width, kv_heads, head_dim]``.

    Keys and values are written once, to the slot ``[step, request, beam]``. A selection moves nothing: it re-gathers
    ``path``, the slot of each beam's ancestor at each step.
    """

    def __init__(self, kv: Tensor) -> None:
        self._kv = kv
        _, _, steps, requests, width, _, _ = kv.shape
        self._slots = torch.arange(requests * width, dtype=torch.int32, device=kv.device).view(requests, width)
        self._path = torch.zeros((steps, requests, width), dtype=torch.int32, device=kv.device)
        self.width = torch.zeros(requests, dtype=torch.int32, device=kv.device)

    def advance(self, step: int, parents: Tensor, width: Tensor) -> None:
        """The beams chosen after ``step`` tokens: ``parents`` int32 ``[R, W]``, ``width`` int32 ``[R]``."""
        beams = parents.shape[1]
        before = self._path[:step]
        ancestors = before.gather(2, parents.long().expand(step, -1, -1))
        before[..., :beams] = ancestors
        self._path[step, :, :beams] = torch.arange(beams, dtype=torch.int32, device=parents.device)
        self.width = width

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        """Keys and values ``[steps, R, width, kv_heads, head_dim]``."""
        keys, values = self._kv[number].unbind(0)
        return keys, values

    def as_pages(self, number: int, step: int) -> tuple[Tensor, Tensor]:
        """One step of a layer as pages of one token each, ``[R * width, kv_heads, 1, head_dim]``."""
        keys, values = self._kv[number, :, step].flatten(1, 2).unsqueeze(-2).unbind(0)
        return keys, values

    def slots(self, beams: int) -> Tensor:
        """Where ``as_pages`` takes the tokens of the first ``beams`` rows of each request; int32 ``[R * beams]``."""
        return self._slots[:, :beams].flatten()

    def path(self, step: int, beams: int) -> Tensor:
        """Int32 ``[step + 1, R, beams]``."""
        return self._path[: step + 1, :, :beams]
