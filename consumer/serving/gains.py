"""Recursive least squares over five terms, with forgetting (a random walk) and clipped residuals. Pure.

In plain floats: for so few numpy takes twice as long, and this is done for every batch.
"""

from typing import Final

Terms = tuple[float, float, float, float, float]

CLIP = 3.0
NOISE = 0.05

_SPREAD = 0.5
_DRIFT = 0.03
_DRIFTED = _DRIFT**2
_ONES: Final[Terms] = (1.0,) * 5


class Gains:
    """What each term counts for, as far as is known: 1 to begin with, never below 0.

    The variance (a symmetric matrix, of which the upper half is kept) is bounded, so directions that are never seen
    stay where they are.
    """

    __slots__ = ("_variance", "values")

    def __init__(self) -> None:
        self.values = _ONES
        self._variance = [_SPREAD**2 * (row == column) for row in range(5) for column in range(row, 5)]

    def correct(self, parts: Terms, seen: float, error: float) -> None:
        """``parts`` came to ``seen`` together. ``error``: by how much that is wrong as a rule, relatively."""
        a, b, c, d, e = parts
        aa, ab, ac, ad, ae, bb, bc, bd, be, cc, cd, ce, dd, de, ee = self._variance
        aa, bb, cc, dd, ee = aa + _DRIFTED, bb + _DRIFTED, cc + _DRIFTED, dd + _DRIFTED, ee + _DRIFTED
        bound = min(1.0, 5 * _SPREAD**2 / (aa + bb + cc + dd + ee))
        ta = bound * (aa * a + ab * b + ac * c + ad * d + ae * e)
        tb = bound * (ab * a + bb * b + bc * c + bd * d + be * e)
        tc = bound * (ac * a + bc * b + cc * c + cd * d + ce * e)
        td = bound * (ad * a + bd * b + cd * c + dd * d + de * e)
        te = bound * (ae * a + be * b + ce * c + de * d + ee * e)
        spread = a * ta + b * tb + c * tc + d * td + e * te + NOISE**2
        ga, gb, gc, gd, ge = self.values
        residual = seen - (a * ga + b * gb + c * gc + d * gd + e * ge)
        most = CLIP * max(spread**0.5, error)
        step = min(max(residual, -most), most) / spread
        self.values = (
            max(ga + ta * step, 0.0),
            max(gb + tb * step, 0.0),
            max(gc + tc * step, 0.0),
            max(gd + td * step, 0.0),
            max(ge + te * step, 0.0),
        )
        sa, sb, sc, sd, se = ta / spread, tb / spread, tc / spread, td / spread, te / spread
        self._variance = [
            bound * aa - sa * ta,
            bound * ab - sa * tb,
            bound * ac - sa * tc,
            bound * ad - sa * td,
            bound * ae - sa * te,
            bound * bb - sb * tb,
            bound * bc - sb * tc,
            bound * bd - sb * td,
            bound * be - sb * te,
            bound * cc - sc * tc,
            bound * cd - sc * td,
            bound * ce - sc * te,
            bound * dd - sd * td,
            bound * de - sd * te,
            bound * ee - se * te,
        ]
