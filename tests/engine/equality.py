"""When an answer of the engine equals the oracle's: scores agree to ε, and nothing differs but what ε may excuse.

Float32 may turn around two candidates whose scores are within ε. So several runs of the search are right: at every
level any choice of beams that is the best ``W`` when scores are read to ε. ``Envelope`` bounds them: the beams that
every right run has, and those that some right run has. Mostly both are the oracle's beams and nothing is excused.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.reference import OracleResult, Search
from engine.reference.items import ItemId
from engine.reference.search import Beams, Prefix
from engine.request import RecallResult

EPSILON = 1e-4


@dataclass(slots=True)
class Tally:
    """What the comparisons of a test run needed; the test report prints it."""

    cases: int = 0
    needed: Counter[str] = field(default_factory=Counter)
    largest_difference: float = 0.0

    def __str__(self) -> str:
        needed = ", ".join(f"{count} for {what}" for what, count in sorted(self.needed.items())) or "none"
        return (
            f"{self.cases} answers compared with the oracle; needed ε = {EPSILON:g} beyond scores: {needed}; "
            f"largest score difference {self.largest_difference:.1e}"
        )


TALLY = Tally()


class Ranks(NamedTuple):
    """How many others stand before each candidate: in every right run (``must``), in some right run (``may``)."""

    must: NDArray[np.int64]
    may: NDArray[np.int64]


def ranks(scores: NDArray[np.float64], sure: NDArray[np.bool_]) -> Ranks:
    """``scores`` descending; ``sure``: in every right run."""
    ascending, surely = -scores, -scores[sure]
    must = np.searchsorted(surely, ascending - EPSILON, side="left")
    may = np.searchsorted(ascending, ascending + EPSILON, side="right") - 1
    return Ranks(must, may)


@dataclass(frozen=True, slots=True)
class Envelope:
    """``possible``: beams that some right run has, with their oracle scores; ``certain``: those that every one has."""

    possible: Beams
    certain: frozenset[Prefix]
    width: int

    @classmethod
    def root(cls, search: Search) -> "Envelope":
        beams: dict[Prefix, float] = {(): 0.0} if search.leaves else {}
        return cls(beams, frozenset(beams), len(beams))

    def descend(self, search: Search, level: int) -> "Envelope":
        if not self.possible:
            return self
        policy = search.request.beam
        candidates = search.candidates(self.possible)
        prefixes = list(candidates)
        scores = np.array(list(candidates.values()))
        sure = np.array([prefix[:-1] in self.certain for prefix in prefixes])
        rank = ranks(scores, sure)
        width = policy.widths[level]
        possible, certain = rank.must < width, sure & (rank.may < width)
        if policy.margin is not None:
            lowest_best = scores[sure].max(initial=-np.inf)
            possible &= (scores >= lowest_best - policy.margin - EPSILON) | (rank.must < policy.min_width)
            certain &= (scores >= scores[0] - policy.margin + EPSILON) | (rank.may < policy.min_width)
        return Envelope(
            {prefix: candidates[prefix] for prefix, stays in zip(prefixes, possible, strict=True) if stays},
            frozenset(prefix for prefix, stays in zip(prefixes, certain, strict=True) if stays),
            width,
        )

    def allows(self, beams: int) -> bool:
        return min(len(self.certain), self.width) <= beams <= min(len(self.possible), self.width)


def assert_equal(result: object, oracle: OracleResult, tally: Tally = TALLY) -> RecallResult:
    """The engine's answer, or ``AssertionError`` if it is not right; ``tally`` counts what it needed."""
    assert isinstance(result, RecallResult), f"the engine answered {result!r}"
    assert result.exhausted == oracle.exhausted, "exhausted"
    assert result.truncated == oracle.truncated, "truncated"
    assert result.unknown_items == oracle.unknown_items, "unknown items"
    assert result.context_tokens == oracle.context_tokens, "context tokens"
    assert result.scores.dtype == np.float32
    assert len(result.items) == len(result.scores)
    items = tuple(id_ if isinstance(id_, str) else int(id_) for id_ in result.items)
    same = items == oracle.items and result.beam_widths == oracle.beam_widths
    difference = score_difference(result.scores, oracle.scores) if same else np.inf
    if difference > EPSILON:
        difference = assert_right_run(items, result, oracle)
    tally.cases += 1
    tally.largest_difference = max(tally.largest_difference, difference)
    if not same:
        tally.needed["beams" if set(items) != set(oracle.items) else "order"] += 1
    if result.sids is not None:
        sid_of = {item.id: sid for sid, items in oracle.search.leaves.items() for item in items}
        assert [tuple(sid) for sid in result.sids.tolist()] == [sid_of[id_] for id_ in items]
    return result


def score_difference(ours: Iterable[float], theirs: Iterable[float]) -> float:
    pairs = zip(ours, theirs, strict=True)
    return max((0.0 if a == b else abs(float(a) - b) for a, b in pairs), default=0.0)


def assert_right_run(items: tuple[ItemId, ...], result: RecallResult, oracle: OracleResult) -> float:
    """The slow way, where the answer is not the oracle's own: is it that of another right run? The score difference."""
    search = oracle.search
    envelope = Envelope.root(search)
    for level, width in enumerate(result.beam_widths):
        envelope = envelope.descend(search, level)
        assert envelope.allows(width), (
            f"level {level}: {width} beams, the oracle has {oracle.beam_widths[level]} and may have "
            f"{len(envelope.certain)} to {len(envelope.possible)}"
        )
    sid_of = {item.id: leaf for leaf in envelope.possible for item in search.leaves[leaf]}
    strangers = [id_ for id_ in items if id_ not in sid_of]
    assert not strangers, f"{strangers} can not be in the answer; the oracle has {oracle.items}, the engine {items}"

    leaves = {sid_of[id_]: envelope.possible[sid_of[id_]] for id_ in items}
    whole = search.resolve(leaves)
    assert items == tuple(item.id for item, _ in whole), f"leaves are not resolved in item order: {items}"
    difference = score_difference(result.scores, [score for _, score in whole])
    assert difference <= EPSILON, f"scores differ by {difference}"

    scores = np.array(list(leaves.values()))
    assert (scores <= np.minimum.accumulate(scores) + EPSILON).all(), f"order: oracle {oracle.items}, engine {items}"
    if len(items) < search.request.top_k:
        assert len(leaves) == result.beam_widths[-1], f"{result.beam_widths[-1]} beams, items of {len(leaves)}: {items}"
    worst = scores.min() if len(items) == search.request.top_k else -np.inf
    missing = [leaf for leaf in envelope.certain - leaves.keys() if envelope.possible[leaf] > worst + EPSILON]
    assert not missing, f"{missing} must be in the answer; the oracle has {oracle.items}, the engine {items}"
    return difference
