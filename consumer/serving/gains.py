"""Recursive least squares over five terms, with forgetting (a random walk) and clipped residuals. Pure.

In plain floats: for so few numpy takes twice as long, and this is done for every batch.
"""

from typing import Final

Terms = tuple[float, float, float, float, float]

CLIP = 3.0
NOISE = 0.05

_SPREAD = 0.5
_DRIFT = 0.03
_ONES: Final[Terms] = (1.0,) * 5


class Gains:
    """What each term counts for, as far as is known: 1 to begin with, never below 0.

    The variance (a symmetric matrix) is bounded, so directions that are never seen stay where they are.
    """

    __slots__ = ("_variance", "values")

    def __init__(self) -> None:
        self.values = _ONES
        self._variance = [[_SPREAD**2 * (row == column) for column in range(5)] for row in range(5)]

    def correct(self, parts: Terms, seen: float, error: float) -> None:
        """``parts`` came to ``seen`` together. ``error``: by how much that is wrong as a rule, relatively."""
        p0, p1, p2, p3, p4 = parts
        trace = 0.0
        for at, row in enumerate(self._variance):
            row[at] += _DRIFT**2
            trace += row[at]
        bound = min(1.0, 5 * _SPREAD**2 / trace)
        towards = [bound * (a * p0 + b * p1 + c * p2 + d * p3 + e * p4) for a, b, c, d, e in self._variance]
        t0, t1, t2, t3, t4 = towards
        g0, g1, g2, g3, g4 = self.values
        spread = p0 * t0 + p1 * t1 + p2 * t2 + p3 * t3 + p4 * t4 + NOISE**2
        residual = seen - (p0 * g0 + p1 * g1 + p2 * g2 + p3 * g3 + p4 * g4)
        most = CLIP * max(spread**0.5, error)
        step = min(max(residual, -most), most) / spread
        self.values = (
            max(g0 + t0 * step, 0.0),
            max(g1 + t1 * step, 0.0),
            max(g2 + t2 * step, 0.0),
            max(g3 + t3 * step, 0.0),
            max(g4 + t4 * step, 0.0),
        )
        self._variance = [
            [
                bound * a - (share := t / spread) * t0,
                bound * b - share * t1,
                bound * c - share * t2,
                bound * d - share * t3,
                bound * e - share * t4,
            ]
            for (a, b, c, d, e), t in zip(self._variance, towards, strict=True)
        ]
