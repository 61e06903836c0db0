"""What a user who comes back costs: a long history that is resident, and a few new events.

``python -m benchmarks.sessions [--model NAME]``. For every batch size, round by round: the same users with the same
histories once cold and once continued from the context that their request before left. Both from requests to items.
The floor is of the same run: decoding as it is for anybody, and the prefill of the new tokens alone.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch

from benchmarks.card import CardWatch, describe, device_name
from benchmarks.cases import Case
from benchmarks.engine_run import engine_settings, graphs_of, load_engine, random_catalog, results
from benchmarks.floor import FloorBench
from benchmarks.measure import Timing, wall_ms
from benchmarks.results import ReportFile, Row, default_path
from benchmarks.shapes import SHAPES, write_model
from engine.recall_engine import RecallEngine
from engine.request import BeamPolicy, RecallRequest, RecallResult

WARM_ROUNDS = 3
TARGET = 1.25
"""Of the floor."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-1.7b", choices=list(SHAPES))
    parser.add_argument("--beam", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=5_000, help="of the history")
    parser.add_argument("--events", type=int, default=20, help="new ones")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = SHAPES[asked.model]
    history = asked.tokens // shape.levels
    context = _context(history + asked.events, shape.levels)
    cases = [Case(shape, asked.beam, context, batch) for batch in asked.batches]
    report = ReportFile(asked.out or default_path("sessions", device_name(device)), describe(device))
    with tempfile.TemporaryDirectory(prefix="recallstream-bench-") as scratch:
        settings = engine_settings(write_model(shape, Path(scratch), device), cases, device, flights=3)
        with graphs_of(cases):
            engine = load_engine(settings, random_catalog(shape.name, (shape.codes,) * shape.levels, asked.items))
        for case in cases:
            row = measure(engine, case, history, asked.events, asked.items, asked.rounds)
            print(json.dumps(report.add(row)), flush=True)
    del engine
    floors = FloorBench(device)
    for case, row in zip(cases, list(report.rows), strict=True):
        print(json.dumps(report.add(floor_row(floors, case, row))), flush=True)


@dataclass(frozen=True, slots=True)
class Round:
    """The same requests cold and continued: milliseconds, answers."""

    cold_ms: float
    warm_ms: float
    cold: Sequence[RecallResult]
    warm: Sequence[RecallResult]


def measure(engine: RecallEngine, case: Case, history: int, events: int, items: int, rounds: int) -> Row:
    """``history`` items, then ``events`` more. Raises RuntimeError if a session was not found or answers differ."""
    random = np.random.default_rng(case.batch)
    with CardWatch(engine.device) as watch:
        done = [_round(engine, case, history, events, items, random) for _ in range(rounds + WARM_ROUNDS)][WARM_ROUNDS:]
    new = case.context - _context(history, case.shape.levels) + 1  # what followed the history is computed again
    for each in done:
        if {answer.context_tokens - answer.reused_tokens for answer in each.warm} != {new}:
            raise RuntimeError(f"{case.name}: not {new} new tokens")
    cold, warm = Timing.of([each.cold_ms for each in done]), Timing.of([each.warm_ms for each in done])
    return {
        "what": "session",
        **case.fields(),
        "new_events": events,
        "new_tokens": new,
        "cold": cold.row(),
        **warm.row(),
        "cold_prefill_ms": median(answer.prefill_ms for each in done for answer in each.cold),
        "prefill_ms": median(answer.prefill_ms for each in done for answer in each.warm),
        "decode_ms": median(answer.decode_ms for each in done for answer in each.warm),
        "cold_over_session": cold.median_ms / warm.median_ms,
        "same_items": mean(_overlap(a, b) for each in done for a, b in zip(each.cold, each.warm, strict=True)),
        "card": watch.summary(),
    }


def floor_row(floors: FloorBench, case: Case, row: Row) -> Row:
    """The floor beside a measured row."""
    whole = floors.floor(case)
    floor = floors.continued(case, row["new_tokens"], whole)
    return {
        "what": "floor",
        **case.fields(),
        "ms": floor,
        "cold_ms": whole.total,
        "of_the_floor": row["ms"] / floor,
        "cold_of_the_floor": row["cold"]["ms"] / whole.total,
        "within_target": row["ms"] <= TARGET * floor,
    }


def _round(
    engine: RecallEngine, case: Case, history: int, events: int, items: int, random: np.random.Generator
) -> Round:
    beam, top_k = BeamPolicy(case.widths), case.widths[-1]
    histories = [random.integers(0, items, history + events) for _ in range(case.batch)]
    after = [RecallRequest(beam, top_k, each, session=str(user)) for user, each in enumerate(histories)]
    before = [RecallRequest(beam, top_k, each[:history], session=str(user)) for user, each in enumerate(histories)]
    cold = [replace(request, session=None) for request in after]
    answers: list[RecallResult] = []
    cold_ms = wall_ms(lambda: answers.extend(results(engine.recall(cold))), 1).median_ms
    results(engine.recall(before))
    warm_ms = wall_ms(lambda: answers.extend(results(engine.recall(after))), 1).median_ms
    return Round(cold_ms, warm_ms, answers[: case.batch], answers[case.batch :])


def _context(events: int, levels: int) -> int:
    """Tokens of a prompt by the template of ``write_model``."""
    return events * levels + 2


def _overlap(one: RecallResult, other: RecallResult) -> float:
    return len(set(one.items) & set(other.items)) / max(len(one.items), 1)


if __name__ == "__main__":
    main()
