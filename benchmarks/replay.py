"""A day of real users, replayed: ``python -m benchmarks.replay [--model NAME]``.

The busiest day of MovieLens-1M in time order, through Kafka (the mock cluster, in this process; the users in one of
their own) and the service with histories held and copied to Redis. A user asks after every 20 ratings of that day and
before he leaves; the request brings those ratings. Real are users, films, order and times. Made are the histories
before the day: the site was new, so each user's own ratings are repeated to a length of 1,000 to 5,000 tokens, the
logarithm uniform; the SIDs are random, and so are the weights. Time is compressed: in the runs ``as fast as it goes`` a
user comes back as soon as there is a place among so many requests in the air, in the runs ``in time`` the day goes by
at a given mean rate, for a while in its middle and after what was before.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.card import CardWatch, describe, device_name
from benchmarks.embedded_service import embedded_broker, serving
from benchmarks.engine_run import load_engine, narrowed, random_catalog
from benchmarks.replay_day import Day, busiest_day, first_visits
from benchmarks.replay_users import Answer, OtherProcess, Users, other_process, summary, warm_again
from benchmarks.results import ReportFile, Row, default_path
from benchmarks.shapes import SHAPES, Shape, write_model
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.settings import CatalogSettings
from consumer.demo.movielens import find_movielens, load_movielens
from consumer.histories.items import Cap
from consumer.histories.redis_store import store_of
from consumer.histories.settings import HistorySettings
from consumer.serving.prior import prior_of_engine
from consumer.serving.service import ServingLoop
from consumer.serving.settings import BatchSettings
from consumer.stream.settings import KafkaSettings
from engine.recall_engine import RecallEngine, Running
from engine.request import RecallRequest
from engine.runtime import buckets
from engine.settings import EngineSettings

FAST, IN_TIME, RESTART = "as fast as it goes", "in time", "restart"
SESSIONS, NONE = "sessions", "no sessions"
RUNS = ((SESSIONS, FAST), (NONE, FAST), (SESSIONS, RESTART), (SESSIONS, IN_TIME), (NONE, IN_TIME))

_PARTITIONS = 4
_SESSION_MS = 2_000
"""The mock cluster holds every rebalance for a second less than this."""
_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """``items``: of the catalog; ``batch``: the largest; ``rate``: mean visits a second of the runs in time, which take
    ``seconds``; ``pages``: of the pool, none: what the device has; ``host_bytes``: for sessions beside it.
    """

    shape: Shape
    day: Day
    items: int
    beam: int
    batch: int
    outstanding: int
    rate: float
    seconds: float
    pages: int | None
    host_bytes: int


class WithoutSessions:
    """The same engine for users whom it does not recognise."""

    def __init__(self, engine: RecallEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def estimate_tokens(self, request: RecallRequest) -> int:
        return self._engine.estimate_tokens(replace(request, session=None))

    def submit(self, requests: Sequence[RecallRequest], *, beside: bool = True) -> Running:
        return self._engine.submit([replace(request, session=None) for request in requests], beside=beside)


class Service:
    """A serving loop that may be ended and begun anew, with an engine that has lost its sessions then."""

    def __init__(self, engine: RecallEngine, arm: str, kafka: KafkaSettings, redis_url: str) -> None:
        self._engine, self._arm, self._kafka = engine, arm, kafka
        self._settings = HistorySettings.model_validate({"store": "write-behind", "url": redis_url})
        self._running = ExitStack()
        self.loop = self._begin()

    def _begin(self) -> ServingLoop:
        engine, spec = self._engine, self._engine.spec
        engine.drop(lambda _user: True)
        store = store_of(self._settings, CatalogSettings(), Cap(spec.max_history_items, spec.history_drop))
        return self._running.enter_context(
            serving(
                engine if self._arm == SESSIONS else cast(RecallEngine, WithoutSessions(engine)),
                self._kafka,
                deadline_s=_DEADLINE_S,
                prior=prior_of_engine(engine),
                catalogs=engine.catalogs,
                histories=self._settings,
                store=store,
            )
        )

    def restart(self) -> None:
        self._running.close()
        self.loop = self._begin()

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()


def measure(plan: Plan, engine: RecallEngine, clients: OtherProcess) -> Iterator[Row]:
    """A row a run. Raises RecallstreamError if the service fails."""
    undisturbed: list[Answer] = []
    for arm, what in RUNS:
        with (
            EmbeddedRedis() as redis,
            embedded_broker(
                _PARTITIONS, session_timeout_ms=_SESSION_MS, heartbeat_interval_ms=300, group_protocol="classic"
            ) as kafka,
            Service(engine, arm, kafka, redis.url) as service,
            CardWatch(engine.device) as watch,
        ):
            before = engine.stats()
            answers, more = _run(plan, what, service, clients, Users(kafka, plan.day, plan.beam))
            if (arm, what) == (SESSIONS, FAST):
                undisturbed = answers
            if what == RESTART:
                more |= warm_again(answers, undisturbed, more["restart_at"])
            memory, histories = _memory(before, engine.stats()), service.loop.snapshot().histories.bytes
        yield {
            "what": what,
            "arm": arm,
            **more,
            **summary(answers),
            **memory,
            "history_bytes": histories,
            "card": watch.summary(),
        }


def _run(plan: Plan, what: str, service: Service, clients: OtherProcess, users: Users) -> tuple[list[Answer], Row]:
    visits = plan.day.visits
    if what == IN_TIME:
        count = round(plan.rate * plan.seconds)
        begin = max(0, (len(visits) - count) // 2)
        clients.process.submit(users.in_turn, visits[:begin], plan.outstanding).result()
        some = visits[begin : begin + count]
        return clients.process.submit(users.in_time, some, plan.seconds).result(), {"rate": plan.rate}
    clients.halfway.clear()
    coming = clients.process.submit(users.in_turn, visits, plan.outstanding)
    if what == RESTART and clients.halfway.wait(_DEADLINE_S):
        service.restart()
    answers = coming.result()
    return answers, {"restart_at": round(answers[len(visits) // 2 - 1].at, 3)} if what == RESTART else {}


def _engine(plan: Plan, model: Path, device: torch.device) -> RecallEngine:
    settings = EngineSettings(
        model=model,
        device="cuda" if device.type == "cuda" else "cpu",
        context_pages=plan.pages,
        sessions_host_bytes=plan.host_bytes,
        max_batch=plan.batch,
        max_batch_rows=plan.batch * plan.beam,
        max_batch_tokens=BatchSettings().max_tokens,
        max_width=plan.beam,
        max_top_k=plan.beam,
    )
    sizes = (plan.shape.codes,) * plan.shape.levels
    with narrowed(widths=[plan.beam], requests=[size for size in buckets.REQUESTS if size <= plan.batch]):
        return load_engine(settings, random_catalog(plan.shape.name, sizes, plan.items))


def _memory(before: dict[str, float], now: dict[str, float]) -> Row:
    """Pool, sessions and host tier; counts are of this run."""
    page = now["context_bytes"] / now["context_pages"]
    counted: Row = {
        name: int(now[name] - before[name])
        for name in ("session_hits", "session_evictions", "host_session_hits", "host_reused_tokens")
        if name in now
    }
    return {
        "pool_gb": round(now["context_bytes"] / 1e9, 3),
        "pool_high_water_gb": round(now["context_pages_high_water"] * page / 1e9, 3),
        "sessions": int(now["sessions"]),
        "sessions_gb": round(now["session_pages"] * page / 1e9, 3),
        "host_gb": round(now.get("host_session_pages", 0) * page / 1e9, 3),
        **counted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-1.7b", choices=list(SHAPES))
    parser.add_argument("--movielens", type=Path, help="directory of its files; default: the installed package")
    parser.add_argument("--beam", type=int, default=256)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--every", type=int, default=20, help="ratings of a user between his visits")
    parser.add_argument("--tokens", type=int, nargs=2, default=[1_000, 5_000], help="of a history before the day")
    parser.add_argument("--visits", type=int, help="only the first so many of the day")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--outstanding", type=int, default=48, help="requests in the air, as fast as it goes")
    parser.add_argument("--rate", type=float, default=40.0, help="mean visits a second, in time")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the runs in time")
    parser.add_argument("--pages", type=int, help="of the pool; default: what the device has")
    parser.add_argument("--host-gb", type=float, default=0.0, help="of the host, for copies of sessions")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = SHAPES[asked.model]
    low, high = (tokens // shape.levels for tokens in asked.tokens)
    day = busiest_day(load_movielens(asked.movielens or find_movielens()), every=asked.every, items=(low, high))
    if asked.visits is not None:
        day = Day(day.date, day.visits[: asked.visits], day.older, day.events)
    plan = Plan(
        shape, day, asked.items, asked.beam, asked.batch, asked.outstanding, asked.rate, asked.seconds, asked.pages,
        int(asked.host_gb * 2**30),
    )  # fmt: skip
    head = {
        "kind": "replay",
        **describe(device),
        "model": shape.name,
        "items": plan.items,
        "beam": plan.beam,
        "day": day.date,
        "users": first_visits(day.visits),
        "every": asked.every,
        "tokens": asked.tokens,
        "outstanding": plan.outstanding,
    }
    report = ReportFile(asked.out or default_path("replay", device_name(device)), head)
    with tempfile.TemporaryDirectory(prefix="recallstream-bench-") as scratch, other_process() as clients:
        begun = time.perf_counter()
        engine = _engine(plan, write_model(shape, Path(scratch), device), device)
        report.note(engine_start_s=round(time.perf_counter() - begun, 1))
        for row in measure(plan, engine, clients):
            print(json.dumps({name: value for name, value in report.add(row).items() if name != "series"}), flush=True)


if __name__ == "__main__":
    main()
