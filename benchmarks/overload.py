"""What the service still answers in time when more comes than it can do.

``python -m benchmarks.overload [--model NAME]``. First the capacity: replies a second with enough requests in the air.
Then arrivals at 0.5 to 3 times that, at random and with bursts of ten times the rate, through Kafka (the mock cluster,
in this process), from a process of their own. Every request has a deadline counted from the moment at which it was
meant to be sent, and so is its latency: a generator that falls behind makes them later, not fewer.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.card import CardWatch, describe, device_name
from benchmarks.embedded_service import embedded_service
from benchmarks.generator import TIMEOUT_S, Generator, Load, Told, generator
from benchmarks.online import LoadMaker, OnlineOptions, Pressure, loaded_model
from benchmarks.results import ReportFile, Row, default_path
from consumer.serving.load_settings import LoadSettings
from consumer.serving.prior import prior_of_engine
from consumer.serving.service import ServingLoop
from consumer.serving.settings import BatchSettings
from consumer.stream.settings import KafkaSettings
from engine.errors import RecallstreamError
from engine.recall_engine import RecallEngine

Pattern = Literal["poisson", "bursts"]
BURST_EVERY_S, BURST_S, BURST = 2.0, 0.2, 10.0
WITHIN = 0.9
"""Of its peak goodput has to stay, and of what can be answered in time where that is less."""

_WARM_S = 3.0
_TOP_K = 32
_PARTITIONS = 4
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Plan:
    """``deadline_s`` from the intended send time; ``seconds`` of arrivals of each measurement."""

    deadline_s: float
    seconds: float
    times: tuple[float, ...] = (0.5, 0.8, 1.0, 1.5, 2.0, 3.0)
    patterns: tuple[Pattern, ...] = get_args(Pattern)
    ladders: tuple[LoadSettings, ...] = (LoadSettings(), LoadSettings(degrade=("beam", "history")))


def arrivals(pattern: Pattern, rate: float, seconds: float) -> NDArray[np.float64]:
    """Moments with ``rate`` a second on average, the same in every run; bursts are ten times what is between them."""
    random = np.random.default_rng(11)
    if pattern == "poisson":
        return random.exponential(1 / rate, int(rate * seconds)).cumsum()
    share = BURST_S / BURST_EVERY_S
    base = rate / (1 + (BURST - 1) * share)
    moments = random.exponential(1 / (BURST * base), int(BURST * base * seconds)).cumsum()
    inside = moments % BURST_EVERY_S < BURST_S
    kept: NDArray[np.float64] = moments[inside | (random.random(len(moments)) < 1 / BURST)]
    return kept


def possible(moments: NDArray[np.float64], rate: float, deadline_s: float) -> float:
    """Answers a second at most: of a server that takes ``1 / rate`` seconds for each and begins none in vain."""
    free, count = 0.0, 0
    for moment in moments.tolist():
        done = max(free, moment) + 1 / rate
        if done <= moment + deadline_s:
            free, count = done, count + 1
    return count / max(free, float(moments[-1]))


def service(engine: RecallEngine, load: LoadSettings) -> AbstractContextManager[tuple[KafkaSettings, ServingLoop]]:
    """Up and a member of its group. Raises RecallstreamError if it fails."""
    return embedded_service(
        engine,
        partitions=_PARTITIONS,
        deadline_s=TIMEOUT_S,
        load=load,
        prior=prior_of_engine(engine),
        catalogs=engine.catalogs,
    )


def capacity(clients: Generator, kafka: KafkaSettings, loads: Sequence[Load], outstanding: int, seconds: float) -> Row:
    """Replies a second with so many requests in the air, once batches have settled.

    Raises RecallstreamError if too few came to tell.
    """
    told = clients.keep_in_the_air(kafka, loads, outstanding, _WARM_S + seconds).result()
    answered = sorted(each.due + each.at for each in told if each.status == "ok")
    settled = [moment for moment in answered if _WARM_S < moment < _WARM_S + seconds]
    if len(settled) < 2 or settled[0] == settled[-1]:
        raise RecallstreamError(f"{len(settled)} replies within {seconds:g} s: too few to tell the capacity")
    rate = sum(moment > settled[0] for moment in settled) / (settled[-1] - settled[0])
    return {"what": "capacity", "outstanding": outstanding, "requests_per_s": round(rate, 3)}


def sweep_one(
    clients: Generator,
    kafka: KafkaSettings,
    loop: ServingLoop,
    loads: Sequence[Load],
    moments: NDArray[np.float64],
    plan: Plan,
) -> Row:
    """All arrivals at their moments; what became of them."""
    sweep = clients.send_at(kafka, loads, moments, plan.deadline_s)
    queued = [0]
    while not wait([sweep], _LOOK_S).done:
        queued.append(loop.snapshot().queued)
    return {
        **summary(sweep.result(), float(moments[-1]), plan.deadline_s),
        "longest_queue": max(queued),
        "prediction_error": round(loop.snapshot().prediction_errors.get("level", 0.0), 4),
    }


def summary(told: Sequence[Told], seconds: float, deadline_s: float) -> Row:
    """``goodput``: answers that were at the client before their deadline, a second until the last of them was there;
    ``p50_ms`` of all answers; ``seconds`` of arrivals.
    """
    ok = [each for each in told if each.status == "ok"]
    in_time = [each for each in ok if each.at <= deadline_s]
    latencies = [each.at * 1e3 for each in ok] or [0.0]
    steps = Counter(step for each in in_time for step in each.degraded)
    until = max([seconds, *(each.due + each.at for each in in_time)])
    return {
        "requests": len(told),
        "offered_per_s": round(len(told) / seconds, 3),
        "goodput_per_s": round(len(in_time) / until, 3),
        "degraded": round(sum(bool(each.degraded) for each in in_time) / max(1, len(in_time)), 4),
        "degraded_steps": dict(steps),
        "late": len(ok) - len(in_time),
        **{status: sum(each.status == status for each in told) for status in ("rejected", "expired", "error")},
        **{f"p{at}_ms": round(float(np.percentile(latencies, at)), 3) for at in (50, 99)},
        "max_ms": round(max(latencies), 3),
    }


def run(engine: RecallEngine, clients: Generator, make: LoadMaker, plan: Plan, report: ReportFile) -> Iterator[Row]:
    """The capacity, a row a load, and for each pattern what they come to. Raises RecallstreamError."""
    with service(engine, LoadSettings(turn_away=False)) as (kafka, _):
        most = 3 * min(BatchSettings().max_requests, engine.settings.max_batch)
        full = report.add(capacity(clients, kafka, make.take(16 * most), most, max(5.0, plan.seconds / 2)))
    yield full
    for load in plan.ladders:
        with service(engine, load) as (kafka, loop):
            warm = arrivals("poisson", 0.5 * full["requests_per_s"], _WARM_S)
            sweep_one(clients, kafka, loop, make.take(len(warm)), warm, plan)  # the cost model learns
            for pattern in plan.patterns:
                case = {"pattern": pattern, "ladder": list(load.degrade)}
                sent = {times: arrivals(pattern, times * full["requests_per_s"], plan.seconds) for times in plan.times}
                rows = []
                for times, moments in sent.items():
                    done = sweep_one(clients, kafka, loop, make.take(len(moments)), moments, plan)
                    rows.append(report.add({"what": "load", "times": times, **case, **done}))
                    yield rows[-1]
                peak = max(full["requests_per_s"], *(row["goodput_per_s"] for row in rows))
                bounds = [possible(moments, peak, plan.deadline_s) for moments in sent.values()]
                yield report.add({**verdict(rows, bounds, plan.deadline_s), **case})


def verdict(rows: Sequence[Row], possible_per_s: Sequence[float], deadline_s: float) -> Row:
    """Whether goodput stays near its peak, or what is possible where that is less, and what is answered is in time.

    ``possible_per_s``: for each of ``rows``.
    """
    peak = max(row["goodput_per_s"] for row in rows)
    least = min(row["goodput_per_s"] / min(peak, most) for row, most in zip(rows, possible_per_s, strict=True))
    return {
        "what": "verdict",
        "possible_per_s": [round(most, 3) for most in possible_per_s],
        "of_peak": round(least, 4),
        "holds": least >= WITHIN,
        "latency_holds": all(row["p99_ms"] <= deadline_s * 1e3 for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-1.7b", help="a shape with random weights, or a model directory")
    parser.add_argument("--contexts", type=int, nargs=2, default=[500, 1_500], help="least and most")
    parser.add_argument("--beam", type=int, default=256)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--deadline-ms", type=float, default=1_000.0)
    parser.add_argument("--seconds", type=float, default=10.0, help="of arrivals of each measurement")
    parser.add_argument("--times", type=float, nargs="+", default=[0.5, 0.8, 1.0, 1.5, 2.0, 3.0])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options = OnlineOptions(tuple(asked.contexts), (asked.beam, asked.beam), pressures=(Pressure(8),), top_k=_TOP_K)
    narrower = replace(options, widths=(asked.beam // 2, asked.beam))  # the ladder's widths have graphs, too
    plan = Plan(asked.deadline_ms / 1e3, asked.seconds, tuple(asked.times))
    name = Path(asked.model).name
    path = asked.out or default_path(f"overload-{name}", device_name(device))
    head = {"kind": "overload", **describe(device), "model": name, "items": asked.items, "beam": asked.beam}
    report = ReportFile(path, head | {"contexts": asked.contexts, "deadline_ms": asked.deadline_ms})
    with (
        generator() as clients,
        loaded_model(asked.model, asked.items, narrower, device) as engine,
        CardWatch(engine.device) as watch,
    ):
        for row in run(engine, clients, LoadMaker(engine, options, asked.items), plan, report):
            print(json.dumps(row), flush=True)
        report.note(card=watch.summary())


if __name__ == "__main__":
    main()
