"""One cell of a table: a model's shape and what a batch asks of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from benchmarks.shapes import SHAPES, Shape
from engine.request import Score

Precision = Literal["bf16", "fp8"]


@dataclass(frozen=True, slots=True)
class Case:
    """``batch`` requests of ``context`` tokens each. ``beam``: its width, at every level or level by level."""

    shape: Shape
    beam: int | tuple[int, ...]
    context: int
    batch: int
    score: Score = "level"
    margin: float | None = None
    precision: Precision = "bf16"

    def __post_init__(self) -> None:
        if len(self.widths) != self.shape.levels:
            raise ValueError(f"beam {self.beam}: {self.shape.name} has {self.shape.levels} levels")

    @property
    def widths(self) -> tuple[int, ...]:
        return self.beam if isinstance(self.beam, tuple) else (self.beam,) * self.shape.levels

    @property
    def width(self) -> int:
        return max(self.widths)

    @property
    def name(self) -> str:
        score = "" if self.score == "level" else f", {self.score} scores"
        precision = "" if self.precision == "bf16" else f", {self.precision}"
        return f"{self.shape.name}, beam {self.beam_name}, context {self.context}, batch {self.batch}{score}{precision}"

    @property
    def beam_name(self) -> str:
        """The width, or those of all levels with slashes; the margin after it."""
        widths = str(self.beam) if isinstance(self.beam, int) else "/".join(map(str, self.beam))
        return widths if self.margin is None else f"{widths} margin {self.margin:g}"

    @property
    def tokens(self) -> int:
        """Rows of a prefill product."""
        return self.batch * self.context

    @property
    def step_rows(self) -> tuple[int, ...]:
        """Rows of a decode product at each forward pass over the beams; the last level needs none."""
        return tuple(self.batch * width for width in self.widths[:-1])

    def fields(self) -> dict[str, object]:
        return {
            "case": self.name,
            "model": self.shape.name,
            "beam": self.beam_name,
            "context": self.context,
            "batch": self.batch,
            "score": self.score,
            "precision": self.precision,
            "decode_rows": sum(self.step_rows),
        }


def table(
    models: Sequence[str],
    beams: Sequence[int | tuple[int, ...]],
    contexts: Sequence[int],
    batches: Sequence[int],
    scores: Sequence[Score] = ("level",),
    margins: Sequence[float | None] = (None,),
    precisions: Sequence[Precision] = ("bf16",),
) -> Iterator[Case]:
    axes = product(models, precisions, beams, margins, scores, contexts, batches)
    for model, precision, beam, margin, score, context, batch in axes:
        yield Case(SHAPES[model], beam, context, batch, score, margin, precision)
