"""What a user who comes back costs: a long history that is resident, and a few new events.

``python -m benchmarks.sessions [--model NAME]``. For every batch size, round by round: the same users with the same
histories once cold and once continued from the context that their request before left. All from requests to items.
The floor is of the same run: decoding as it is for anybody, and the prefill of the new tokens alone.

Then the same with other numbers of new events. None: what is left to do at the request if the prefill ran ahead of it,
when the events came. And once more with sessions that had to leave the device and are copied back from the host.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.breakdown import breakdown, profile
from benchmarks.card import CardWatch, describe, device_name
from benchmarks.cases import Case
from benchmarks.engine_run import engine_settings, graphs_of, load_engine, random_catalog, results
from benchmarks.floor import FloorBench
from benchmarks.measure import Timing, wall_ms
from benchmarks.results import ReportFile, Row, default_path, find
from benchmarks.shapes import SHAPES, pages_for, write_model
from engine.catalog.catalog import Catalog
from engine.recall_engine import RecallEngine
from engine.request import BeamPolicy, RecallRequest, RecallResult
from engine.settings import PAGE_TOKENS, EngineSettings

SESSION, NEW_EVENTS, HOST = "session", "new events", "session from the host"
FLOOR, PROFILE = "floor", "session, profile"
WARM_ROUNDS = 1
_GRAPHED_TOKENS = 2048
"""Cold runs of more are eager, which is as fast."""
TARGET = 1.25
"""Of the floor."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-1.7b", choices=list(SHAPES))
    parser.add_argument("--beam", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=5_000, help="of the history")
    parser.add_argument("--events", type=int, default=20, help="new ones")
    parser.add_argument("--other-events", type=int, nargs="*", default=[0, 1, 20, 40, 85, 170])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--other-batches", type=int, nargs="+", default=[1, 4], help="of what has no target")
    parser.add_argument("--other-rounds", type=int, default=8, help="of what has no target")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = SHAPES[asked.model]
    users = Users(asked.items, asked.tokens // shape.levels, asked.events)
    cases = [
        Case(shape, asked.beam, _context(users.before + users.new, shape.levels), batch) for batch in asked.batches
    ]
    report = ReportFile(asked.out or default_path("sessions", device_name(device)), describe(device))
    report.note(kind="sessions", model=asked.model, beam=asked.beam, items=asked.items, history=users.before)

    def add(row: Row) -> None:
        print(json.dumps(report.add(row)), flush=True)

    catalog = random_catalog(shape.name, (shape.codes,) * shape.levels, asked.items)
    with tempfile.TemporaryDirectory(prefix="recallstream-bench-") as scratch:
        directory = write_model(shape, Path(scratch), device)
        most = _context(users.before + max([users.new, *asked.other_events]), shape.levels)
        settings = engine_settings(
            directory,
            [replace(case, context=most) for case in cases],
            device,
            flights=3,
            graph_prefill_tokens=_GRAPHED_TOKENS,
        )
        engine, floors = _engine(settings, catalog, cases), FloorBench(device)
        for case in cases:
            add(session_row(engine, case, users, asked.rounds))
        for case in cases:
            add(floor_row(floors, case, find(report.rows, what=SESSION, case=case.name)))
        others = [case for case in cases if case.batch in asked.other_batches]
        for case in others:
            for events in asked.other_events:
                add(new_events_row(engine, case, replace(users, new=events), asked.other_rounds))
        del engine
        if others:
            engine = _engine(_host_settings(settings, others), catalog, others)
            for case in others:
                add(host_row(engine, case, users, asked.other_rounds, others[-1].batch))
                add(floor_row(floors, case, find(report.rows, what=HOST, case=case.name)))
            for case in others if device.type == "cuda" else ():
                add(profile_row(engine, case, users))


@dataclass(frozen=True, slots=True)
class Users:
    """Histories of ``before`` random items below ``items``, and ``new`` events more."""

    items: int
    before: int
    new: int

    def histories(self, count: int, random: np.random.Generator) -> list[NDArray[np.int64]]:
        return [random.integers(0, self.items, self.before + self.new) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Round:
    """The same requests cold and continued: milliseconds, answers."""

    cold_ms: float
    warm_ms: float
    cold: Sequence[RecallResult]
    warm: Sequence[RecallResult]


def session_row(engine: RecallEngine, case: Case, users: Users, rounds: int) -> Row:
    """Raises RuntimeError if a session was not found."""
    with CardWatch(engine.device) as watch:
        done = _rounds(engine, case, users, rounds)
    return {"what": SESSION, **_compared(case, users, done), "card": watch.summary()}


def profile_row(engine: RecallEngine, case: Case, users: Users) -> Row:
    """Where the time of one continued batch goes, on a CUDA device; see ``breakdown``."""
    before, after = _visits(case, users, np.random.default_rng(case.batch))
    results(engine.recall(before))
    return {"what": PROFILE, **case.fields(), "parts": breakdown(profile(lambda: results(engine.recall(after))))}


def new_events_row(engine: RecallEngine, case: Case, users: Users, rounds: int) -> Row:
    """Without a cold run. Raises RuntimeError if a session was not found."""
    case = replace(case, context=_context(users.before + users.new, case.shape.levels))
    done = _rounds(engine, case, users, rounds, cold=False)
    return {"what": NEW_EVENTS, **case.fields(), **_continued(case, users, done)}


def host_row(engine: RecallEngine, case: Case, users: Users, rounds: int, crowd: int) -> Row:
    """``crowd``: others at a time whose contexts fill the device. Raises RuntimeError if a copy was not found."""

    def others() -> None:
        if engine.device.type == "cuda":
            torch.cuda.synchronize(engine.device)  # a copy that is not complete would be none
        random = np.random.default_rng(crowd)
        results(engine.recall([_request(case, each, None) for each in users.histories(crowd, random)]))

    found = engine.stats()["host_session_hits"]
    done = _rounds(engine, case, users, rounds, evict=others)
    if engine.stats()["host_session_hits"] - found != case.batch * (rounds + WARM_ROUNDS):
        raise RuntimeError(f"{case.name}: not all came from the host")
    pages = pages_for(_context(users.before, case.shape.levels))
    stats = engine.stats()
    copied = case.batch * pages * stats["context_bytes"] / stats["context_pages"]
    return {"what": HOST, **_compared(case, users, done), "copied_gb": copied / 1e9}


def floor_row(floors: FloorBench, case: Case, row: Row | None) -> Row:
    """The floor beside a measured row."""
    if row is None:
        raise RuntimeError(f"{case.name} was not measured")
    whole = floors.floor(case)
    floor = floors.continued(case, row["new_tokens"], whole)
    return {
        "what": f"{row['what']}, {FLOOR}",
        **case.fields(),
        "ms": floor,
        "cold_ms": whole.total,
        "of_the_floor": row["ms"] / floor,
        "cold_of_the_floor": row["cold"]["ms"] / whole.total,
        "within_target": row["ms"] <= TARGET * floor,
    }


def _compared(case: Case, users: Users, done: Sequence[Round]) -> Row:
    cold, row = Timing.of([each.cold_ms for each in done]), _continued(case, users, done)
    return {
        **case.fields(),
        **row,
        "cold": cold.row(),
        "cold_prefill_ms": median(answer.prefill_ms for each in done for answer in each.cold),
        "cold_over_session": cold.median_ms / row["ms"],
        "same_items": mean(_overlap(a, b) for each in done for a, b in zip(each.cold, each.warm, strict=True)),
    }


def _continued(case: Case, users: Users, done: Sequence[Round]) -> Row:
    new = case.context - _context(users.before, case.shape.levels) + 1  # what followed the history is computed again
    for each in done:
        if {answer.context_tokens - answer.reused_tokens for answer in each.warm} != {new}:
            raise RuntimeError(f"{case.name}: not {new} new tokens")
    return {
        "new_events": users.new,
        "new_tokens": new,
        **Timing.of([each.warm_ms for each in done]).row(),
        "prefill_ms": median(answer.prefill_ms for each in done for answer in each.warm),
        "decode_ms": median(answer.decode_ms for each in done for answer in each.warm),
    }


def _rounds(
    engine: RecallEngine,
    case: Case,
    users: Users,
    rounds: int,
    *,
    cold: bool = True,
    evict: Callable[[], None] | None = None,
) -> list[Round]:
    random = np.random.default_rng(case.batch)
    done = [_round(engine, case, users, random, cold, evict) for _ in range(rounds + WARM_ROUNDS)]
    return done[WARM_ROUNDS:]


def _round(
    engine: RecallEngine,
    case: Case,
    users: Users,
    random: np.random.Generator,
    cold: bool,
    evict: Callable[[], None] | None,
) -> Round:
    before, after = _visits(case, users, random)
    alone = [replace(request, session=None) for request in after] if cold else []
    cold_ms, cold_answers = _timed(engine, alone)
    results(engine.recall(before))
    if evict is not None:
        evict()
    warm_ms, warm_answers = _timed(engine, after)
    return Round(cold_ms, warm_ms, cold_answers, warm_answers)


def _visits(case: Case, users: Users, random: np.random.Generator) -> tuple[list[RecallRequest], list[RecallRequest]]:
    """Of as many users: the first request and the next one."""
    histories = users.histories(case.batch, random)
    names = [str(number) for number in random.integers(1 << 62, size=case.batch)]  # whom no copy remembers
    after = [_request(case, each, name) for each, name in zip(histories, names, strict=True)]
    before = [_request(case, each[: users.before], name) for each, name in zip(histories, names, strict=True)]
    return before, after


def _timed(engine: RecallEngine, requests: Sequence[RecallRequest]) -> tuple[float, Sequence[RecallResult]]:
    answers: list[RecallResult] = []
    timing = wall_ms(lambda: answers.extend(results(engine.recall(requests))), 1)
    return timing.median_ms, answers


def _request(case: Case, history: NDArray[np.int64], user: str | None) -> RecallRequest:
    return RecallRequest(BeamPolicy(case.widths), case.widths[-1], history, session=user)


def _engine(settings: EngineSettings, catalog: Catalog, cases: Sequence[Case]) -> RecallEngine:
    with graphs_of(cases):
        return load_engine(settings, catalog)


def _host_settings(settings: EngineSettings, cases: Sequence[Case]) -> EngineSettings:
    """Pages for the largest batch and no context more, and room on the host for what it leaves."""
    case = cases[-1]
    each = pages_for(case.context)
    pages = case.batch * each + each // 2
    itemsize = 2 if settings.device == "cuda" else 4
    page_bytes = 2 * case.shape.layers * case.shape.kv_heads * PAGE_TOKENS * case.shape.head_dim * itemsize
    return settings.model_copy(
        update={
            "context_pages": pages,
            "sessions_host_bytes": pages * page_bytes,
        }
    )


def _context(events: int, levels: int) -> int:
    """Tokens of a prompt by the template of ``write_model``."""
    return events * levels + 2


def _overlap(one: RecallResult, other: RecallResult) -> float:
    return len(set(one.items) & set(other.items)) / max(len(one.items), 1)


if __name__ == "__main__":
    main()
