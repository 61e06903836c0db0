"""What the rows of a run say beside one another: ratios to the floors, and the best batch under a latency."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.results import Row, find

ENGINE, PIPELINED, FLOOR, CHAINED, FLATTENED, TRANSFORMERS = (
    "engine", "engine, two batches in flight", "bf16 floor", "bf16 chained floor", "flattened beams", "transformers",
)  # fmt: skip
SAME_ALONE, ONLINE = "same alone", "online"
FLOOR_TARGET, CHAINED_TARGET = 1.03, 1.12
RATE_TARGET = 0.92
MEAN_LATENCY_MS, P99_MS = 100.0, 200.0


@dataclass(frozen=True, slots=True)
class Line:
    """A case with what was timed of it; None where it was not."""

    case: Mapping[str, Any]
    engine: Row
    pipelined: Row | None
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

    def _over(self, other: Row | None) -> float | None:
        return None if other is None or "ms" not in other else self.engine["ms"] / other["ms"]


def lines(rows: Sequence[Row]) -> Iterator[Line]:
    """A line for every case that the engine ran, in the order of the run."""
    for name in dict.fromkeys(row["case"] for row in rows if row["what"] == ENGINE and "ms" in row):

        def of(what: str, name: object = name) -> Row | None:
            return find(rows, what=what, case=name)

        engine = of(ENGINE)
        if engine is not None:
            yield Line(engine, engine, of(PIPELINED), of(FLOOR), of(CHAINED), of(FLATTENED), of(TRANSFORMERS))


@dataclass(frozen=True, slots=True)
class Best:
    """The most requests a second of one model, beam and context, among the batches whose mean latency is low enough."""

    case: Mapping[str, Any]
    engine_batch: int
    engine_rate: float
    floor_batch: int
    floor_rate: float

    @property
    def ratio(self) -> float:
        return self.engine_rate / self.floor_rate


def best_rates(found: Sequence[Line], latency_ms: float = MEAN_LATENCY_MS) -> Iterator[Best]:
    groups: dict[tuple[object, ...], list[Line]] = {}
    for line in found:
        groups.setdefault(tuple(line.case[key] for key in ("model", "beam", "context", "score")), []).append(line)
    for group in groups.values():
        engine, floor = (_best(group, kind, latency_ms) for kind in ("engine", "floor"))
        if len(group) > 1 and engine is not None and floor is not None:
            yield Best(group[0].case, engine[1], engine[0], floor[1], floor[0])


def _best(group: Sequence[Line], kind: str, latency_ms: float) -> tuple[float, int] | None:
    """Requests a second and batch."""
    rates = [
        (line.case["batch"] / row["ms"] * 1e3, line.case["batch"])
        for line in group
        if (row := getattr(line, kind)) is not None and row.get("ms", math.inf) <= latency_ms
    ]
    return max(rates, default=None)


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
