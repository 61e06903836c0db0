"""How long a batch will take, learned from those before it. Pure: the caller measures."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

import msgspec

from consumer.serving.gains import CLIP, NOISE, Gains, Terms
from engine.request import Score

TRUSTED_AFTER = 3
"""Batches of a score mode after which its predictions may turn requests away."""

_SMOOTHING = 0.1
_FAR_OFF = 4.0
_FAR_OFF_FOR = 4


class Work(msgspec.Struct, frozen=True, gc=False):
    """What requests ask of the engine; adds up over a batch.

    ``tokens``: context tokens that are not resident; ``token_keys``: pairs of such a token and a key that it attends
    to; ``rows``: beams of one decoded level; ``row_keys``: pairs of a beam and a context token.
    """

    tokens: float = 0.0
    token_keys: float = 0.0
    rows: float = 0.0
    row_keys: float = 0.0

    @classmethod
    def of(cls, context: float, rows: float, resident: float = 0.0) -> "Work":
        """One request with ``context`` tokens, ``resident`` of which need no prefill, and ``rows`` beams."""
        new = context - resident
        if new < 0:
            new = 0.0
        return cls(new, new * (context - new / 2), rows, rows * context)

    @classmethod
    def total(cls, parts: Iterable["Work"]) -> "Work":
        """All of them together."""
        tokens = token_keys = rows = row_keys = 0.0
        for part in parts:
            tokens += part.tokens
            token_keys += part.token_keys
            rows += part.rows
            row_keys += part.row_keys
        return cls(tokens, token_keys, rows, row_keys)

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.tokens + other.tokens,
            self.token_keys + other.token_keys,
            self.rows + other.rows,
            self.row_keys + other.row_keys,
        )


NO_WORK = Work()


class WorkSum(msgspec.Struct, gc=False):
    """Work that comes and goes."""

    tokens: float = 0.0
    token_keys: float = 0.0
    rows: float = 0.0
    row_keys: float = 0.0

    def add(self, work: Work) -> None:
        self.tokens += work.tokens
        self.token_keys += work.token_keys
        self.rows += work.rows
        self.row_keys += work.row_keys

    def subtract(self, work: Work) -> None:
        self.tokens -= work.tokens
        self.token_keys -= work.token_keys
        self.rows -= work.rows
        self.row_keys -= work.row_keys


@dataclass(frozen=True, slots=True)
class Prior:
    """Seconds before anything is measured: of any batch, and of each unit of ``Work``. ``known``: of this device."""

    batch: float
    token: float = 0.0
    token_key: float = 0.0
    row: float = 0.0
    row_key: float = 0.0
    known: bool = False

    @property
    def seconds(self) -> Terms:
        """The batch first."""
        return self.batch, self.token, self.token_key, self.row, self.row_key


_NOTHING: Final[Terms] = (0.0,) * 5

UNKNOWN = Prior(0.005, 1e-5, 1e-9, 1e-5, 1e-9)
"""Of a small model on a few CPU cores; the first batch corrects it."""


class CostModel:
    """A line over ``Work`` for each score mode."""

    def __init__(self, prior: Prior) -> None:
        self._modes: dict[Score, _Line] = {mode: _Line(prior) for mode in ("level", "vocab", "legal")}

    def predict(self, mode: Score, work: Work | WorkSum) -> float:
        """Seconds of a batch in the engine, alone."""
        return self._modes[mode].predict(work)

    def foreseen(self, mode: Score, work: Work | WorkSum) -> float:
        """The same as far as it may be relied on: 0 where too little was measured."""
        line = self._modes[mode]
        return line.predict(work) if line.trusted else 0.0

    def coefficients(self, mode: Score) -> Terms:
        """What ``foreseen`` goes by: seconds of any batch, and of each unit of ``Work``."""
        line = self._modes[mode]
        return line.coefficients if line.trusted else _NOTHING

    def share(self, mode: Score, work: Work) -> float:
        """Seconds that requests add to a batch that runs anyway."""
        return self._modes[mode].share(work)

    def fixed(self, mode: Score) -> float:
        """Seconds of a batch beside its requests' shares."""
        return self._modes[mode].fixed

    def trusted(self, mode: Score) -> bool:
        """Enough was measured, or the device is a known one."""
        return self._modes[mode].trusted

    def error(self, mode: Score) -> float:
        """Mean relative error of the last predictions."""
        return self._modes[mode].error

    def observe(self, mode: Score, work: Work, seconds: float) -> None:
        """A batch took so long."""
        self._modes[mode].observe(work, seconds)

    def errors(self) -> Mapping[str, float]:
        """Mean relative errors of the modes that were measured."""
        return {mode: line.error for mode, line in self._modes.items() if line.count}


@dataclass(slots=True)
class _Line:
    """Gains multiply the prior's seconds. The first batch scales them all: a prior that is wrong by a factor is right
    from then on.

    Steps are of the size of the scale, so where that is far off for some batches (the first one was an exception, the
    device has changed) the line begins anew. ``far_off``: batches in a row, negative where they took less.
    """

    prior: Prior
    count: int = 0
    error: float = 0.2
    gains: Gains = field(default_factory=Gains)
    scale: float = 1.0
    far_off: int = 0
    coefficients: Terms = _NOTHING
    trusted: bool = False

    def __post_init__(self) -> None:
        self._refresh()

    @property
    def fixed(self) -> float:
        return self.coefficients[0]

    def predict(self, work: Work | WorkSum) -> float:
        batch, token, token_key, row, row_key = self.coefficients
        return batch + token * work.tokens + token_key * work.token_keys + row * work.rows + row_key * work.row_keys

    def share(self, work: Work) -> float:
        _, token, token_key, row, row_key = self.coefficients
        return token * work.tokens + token_key * work.token_keys + row * work.rows + row_key * work.row_keys

    def observe(self, work: Work, seconds: float) -> None:
        batch, token, token_key, row, row_key = self.prior.seconds
        token, token_key, row = token * work.tokens, token_key * work.token_keys, row * work.rows
        row_key *= work.row_keys
        expected = batch + token + token_key + row + row_key
        if not (0 < expected < inf and 0 < seconds < inf):
            return
        predicted, scale = self.predict(work), seconds / expected
        self.far_off = self._side(predicted, seconds)
        if not self.count or abs(self.far_off) == _FAR_OFF_FOR:
            self.scale, self.far_off, self.gains = scale, 0, Gains()
        else:
            parts = batch / expected, token / expected, token_key / expected, row / expected, row_key / expected
            self.gains.correct(parts, scale / self.scale, self.error)
        if self.count:
            wrong = abs(predicted - seconds) / seconds
            self.error += _SMOOTHING * (min(wrong, CLIP * self.error + NOISE) - self.error)
        self.count += 1
        self._refresh()

    def _side(self, predicted: float, seconds: float) -> int:
        """``far_off`` after this batch."""
        if seconds > _FAR_OFF * predicted:
            return max(self.far_off, 0) + 1
        return min(self.far_off, 0) - 1 if seconds * _FAR_OFF < predicted else 0

    def _refresh(self) -> None:
        batch, token, token_key, row, row_key = self.prior.seconds
        g0, g1, g2, g3, g4 = self.gains.values
        scale = self.scale
        self.coefficients = (
            g0 * batch * scale,
            g1 * token * scale,
            g2 * token_key * scale,
            g3 * row * scale,
            g4 * row_key * scale,
        )
        self.trusted = self.prior.known or self.count >= TRUSTED_AFTER
