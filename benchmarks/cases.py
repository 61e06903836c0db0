"""One cell of a table: a model's shape and what a batch asks of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from benchmarks.shapes import SHAPES, Shape
from engine.request import Score


@dataclass(frozen=True, slots=True)
class Case:
    """``batch`` requests of ``context`` tokens each, ``width`` beams at every level."""

    shape: Shape
    width: int
    context: int
    batch: int
    score: Score = "level"

    @property
    def name(self) -> str:
        suffix = "" if self.score == "level" else f", {self.score} scores"
        return f"{self.shape.name}, beam {self.width}, context {self.context}, batch {self.batch}{suffix}"

    @property
    def tokens(self) -> int:
        """Rows of a prefill product."""
        return self.batch * self.context

    @property
    def rows(self) -> int:
        """Rows of a decode product."""
        return self.batch * self.width

    @property
    def steps(self) -> int:
        """Forward passes over the beams: the last level needs none."""
        return self.shape.levels - 1

    def fields(self) -> dict[str, object]:
        return {
            "case": self.name,
            "model": self.shape.name,
            "beam": self.width,
            "context": self.context,
            "batch": self.batch,
            "levels": self.shape.levels,
            "score": self.score,
        }


def table(
    models: Sequence[str],
    widths: Sequence[int],
    contexts: Sequence[int],
    batches: Sequence[int],
    scores: Sequence[Score] = ("level",),
) -> Iterator[Case]:
    for model, width, score, context, batch in product(models, widths, scores, contexts, batches):
        yield Case(SHAPES[model], width, context, batch, score)
