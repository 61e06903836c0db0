"""Which product is fastest for a matrix and a number of rows, as measured by ``python -m benchmarks.fp8_kinds``."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch

Kind = Literal["dense", "tensorwise", "rowwise"]

MULTIPLE = 16
"""Float8 products want both sides of a matrix to be multiples of this."""

TABLE = Path(__file__).with_name("fp8_kinds.json")


@dataclass(frozen=True, slots=True)
class Kinds:
    """``steps``: a kind and the most rows it is taken for, by rows; the last has no end."""

    steps: tuple[tuple[int | None, Kind], ...]

    def __call__(self, rows: int) -> Kind:
        return next(kind for most, kind in self.steps if most is None or rows <= most)

    @property
    def some_dense(self) -> bool:
        return any(kind == "dense" for _, kind in self.steps)


DEFAULT = Kinds(((None, "tensorwise"),))
"""For matrices and devices that nobody measured."""


def kinds_for(out: int, inputs: int, device: torch.device) -> Kinds:
    """For a matrix ``[out, inputs]``."""
    if device.type != "cuda":
        return DEFAULT
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    steps = _table().get(capability, {}).get(f"{out}x{inputs}")
    return DEFAULT if steps is None else Kinds(tuple((most, kind) for most, kind in steps))


@cache
def _table() -> dict[str, dict[str, list[tuple[int | None, Kind]]]]:
    """By compute capability and matrix."""
    table: dict[str, dict[str, list[tuple[int | None, Kind]]]] = json.loads(TABLE.read_text())
    return table
