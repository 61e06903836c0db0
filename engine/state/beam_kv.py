"""Keys and values of the decoded tokens, and the path by which a beam reads its ancestors'."""

import torch
from torch import Tensor

from engine.model.decoder_config import DecoderConfig


class BeamKV:
    """State of the beams of one batch of ``requests``, at most ``width`` beams wide, for ``steps`` decoded tokens.

    Keys and values are written once, to the slot ``[step, request, beam]``. A selection moves nothing: it re-gathers
    ``path``, the slot of each beam's ancestor at each step.
    """

    def __init__(
        self, config: DecoderConfig, steps: int, requests: int, width: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (config.layers, 2, steps, requests, width, config.kv_heads, config.head_dim)
        self._kv = torch.zeros(shape, device=device, dtype=dtype)
        self._slots = torch.arange(requests * width, dtype=torch.int32, device=device).view(requests, width)
        self._path = torch.zeros((steps, requests, width), dtype=torch.int32, device=device)
        self.width = torch.zeros(requests, dtype=torch.int32, device=device)

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

    @property
    def nbytes(self) -> int:
        return self._kv.nbytes
