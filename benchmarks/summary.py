"""What the rows of a run say beside one another: ratios to the floors, and the best batch under a latency."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.results import Row, find

ENGINE, PIPELINED, FREE, FLOOR, CHAINED, FLATTENED, TRANSFORMERS = (
    "engine", "engine, two batches in flight", "engine, no constraint", "floor", "chained floor", "flattened beams",
    "transformers",
)  # fmt: skip
SAME_ALONE, PROFILE, ONLINE, TRACED = "same alone", "profile", "online", "traced"
FLOOR_TARGETS = {"bf16": 1.03, "fp8": 1.08}
CHAINED_TARGET, FREE_TARGET = 1.12, 1.01
RATE_TARGET = 0.92
MEAN_LATENCY_MS, P99_MS = 100.0, 200.0


@dataclass(frozen=True, slots=True)
class Line:
    """A case with what was timed of it; None where it was not."""

    case: Mapping[str, Any]
    engine: Row
    pipelined: Row | None
    free: Row | None
    floor: Row | None
    chained: Row | None
    flattened: Row | None
    transformers: Row | None

    @property
    def over_floor(self) -> float | None:
        return self._over(self.floor)

    @property
    def over_chained(self) -> float | None:
        return self._over(self.chained)

    @property
    def over_free(self) -> float | None:
        """What the constraint costs: with it and without it, timed one after the other."""
        return None if self.free is None or "ms" not in self.free else self.free["with_it_ms"] / self.free["ms"]

    def _over(self, other: Row | None) -> float | None:
        return None if other is None or "ms" not in other else self.engine["ms"] / other["ms"]


def lines(rows: Sequence[Row]) -> Iterator[Line]:
    """A line for every case that the engine ran, in the order of the run."""
    for name in dict.fromkeys(row["case"] for row in rows if row["what"] == ENGINE and "ms" in row):

        def of(what: str, name: object = name) -> Row | None:
            return find(rows, what=what, case=name)

        engine = of(ENGINE)
        if engine is not None:
            others = (PIPELINED, FREE, FLOOR, CHAINED, FLATTENED, TRANSFORMERS)
            yield Line(engine, engine, *map(of, others))


@dataclass(frozen=True, slots=True)
class Best:
    """The most requests a second of one model, beam and context, among the batches whose mean latency is low enough.

    ``engine_what``: whether that took one batch at a time or two in flight. A floor has one at a time.
    """

    case: Mapping[str, Any]
    engine_what: str
    engine_batch: int
    engine_rate: float
    floor_batch: int
    floor_rate: float

    @property
    def name(self) -> str:
        """The case without its batch."""
        precision = "" if self.case["precision"] == "bf16" else f", {self.case['precision']}"
        case = f"{self.case['model']}, beam {self.case['beam']}, context {self.case['context']}"
        return f"{case}, {self.case['score']} scores{precision}"

    @property
    def ratio(self) -> float:
        return self.engine_rate / self.floor_rate


def best_rates(found: Sequence[Line], latency_ms: float = MEAN_LATENCY_MS) -> Iterator[Best]:
    groups: dict[tuple[object, ...], list[Line]] = {}
    for line in found:
        key = tuple(line.case[name] for name in ("model", "precision", "beam", "context", "score"))
        groups.setdefault(key, []).append(line)
    for group in groups.values():
        engine = _best([row for line in group for row in (line.engine, line.pipelined)], latency_ms)
        floor = _best([line.floor for line in group], latency_ms)
        if engine is not None and floor is not None:
            yield Best(group[0].case, engine["what"], engine["batch"], _rate(engine), floor["batch"], _rate(floor))


def _best(rows: Sequence[Row | None], latency_ms: float) -> Row | None:
    timed: list[Row] = [row for row in rows if row is not None and "ms" in row]
    fast = [row for row in timed if _latency(row) <= latency_ms]
    return max(fast, key=_rate, default=None)


def _latency(row: Row) -> float:
    """Milliseconds, the mean; a floor's is its time."""
    latency: float = row["latency_ms"] if "latency_ms" in row else row["ms"]
    return latency


def _rate(row: Row) -> float:
    """Requests a second."""
    rate: float = row["batch"] / row["ms"] * 1e3
    return rate


def compared_beams(found: Sequence[Line]) -> Iterator[list[Line]]:
    """Cases that differ in the beam only, where one of them is a schedule or has a margin; the fixed width first."""
    groups: dict[tuple[object, ...], list[Line]] = {}
    for line in found:
        key = tuple(line.case[name] for name in ("model", "precision", "context", "batch", "score"))
        groups.setdefault(key, []).append(line)
    for group in groups.values():
        fixed = [line for line in group if line.case["beam"].isdigit()]
        if fixed and len(group) > len(fixed):
            yield [max(fixed, key=lambda line: int(line.case["beam"])), *(line for line in group if line not in fixed)]


def ablated(rows: Sequence[Row]) -> Iterator[tuple[str, Row, Row]]:
    """What was left out, the engine's row without it, and the engine's row with everything."""
    for row in rows:
        if "against" in row and "ms" in row and (whole := find(rows, what=row["against"], case=row["of"])) is not None:
            yield row["what"].removeprefix("engine without "), row, whole


def best_load(rows: Sequence[Row], p99_ms: float = P99_MS) -> Row | None:
    """Of several loads online the one that is served fastest, among those whose p99 is low enough."""
    loads = [row for row in rows if row["what"] == ONLINE]
    fast = [row for row in loads if row["p99_ms"] <= p99_ms]
    return max(fast, key=lambda row: row["requests_per_s"]) if len(loads) > 1 and fast else None
