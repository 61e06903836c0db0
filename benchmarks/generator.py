"""Requests through Kafka from a process of their own, which takes no time from the service's interpreter.

One client sends all of them. Before the first one it asks one request that is not counted: its connections stand then.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consumer.client import RecallClient, RecallError
from consumer.stream.settings import KafkaSettings
from consumer.wire.reply import RecallReply

TIMEOUT_S = 60.0
_BREATH_S = 0.05
"""Between the request that is not counted and the first moment."""


@dataclass(frozen=True, slots=True)
class Load:
    """One request to be: a history (item ids, oldest first) and a beam."""

    history: NDArray[np.int64]
    width: int
    top_k: int


@dataclass(frozen=True, slots=True)
class Told:
    """A reply without its items. ``due``: seconds from the begin when the request was meant to be sent; ``at``: seconds
    later that its reply was there.
    """

    status: str
    degraded: tuple[str, ...]
    timing_ms: Mapping[str, float]
    due: float
    at: float


@dataclass(frozen=True, slots=True)
class Generator:
    """The other process, which does one thing after the other; its futures raise TransportError, and
    RecallTimeoutError where no reply came in a minute.
    """

    _process: ProcessPoolExecutor

    def keep_in_the_air(
        self, kafka: KafkaSettings, loads: Sequence[Load], outstanding: int, until_s: float | None = None
    ) -> "Future[list[Told]]":
        """So many at a time: each of ``loads`` once, or again and again until so many seconds have passed."""
        return self._process.submit(_run_closed, kafka, loads, outstanding, until_s)

    def send_at(
        self,
        kafka: KafkaSettings,
        loads: Sequence[Load],
        moments: NDArray[np.float64],
        deadline_s: float | None = None,
    ) -> "Future[list[Told]]":
        """Each at its moment (seconds, ascending), whatever is in the air; ``deadline_s`` counts from that moment."""
        return self._process.submit(_run_open, kafka, loads, moments, deadline_s)


@contextmanager
def generator() -> Iterator[Generator]:
    """Spawned: the service's process has threads and a device."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield Generator(process)


def _run_closed(kafka: KafkaSettings, loads: Sequence[Load], outstanding: int, until_s: float | None) -> list[Told]:
    return asyncio.run(_closed(kafka, loads, outstanding, until_s))


def _run_open(
    kafka: KafkaSettings, loads: Sequence[Load], moments: NDArray[np.float64], deadline_s: float | None
) -> list[Told]:
    return asyncio.run(_open(kafka, loads, moments, deadline_s))


async def _closed(kafka: KafkaSettings, loads: Sequence[Load], outstanding: int, until_s: float | None) -> list[Told]:
    told: list[Told] = []
    async with RecallClient(kafka, timeout=TIMEOUT_S) as client:
        await _ask(client, loads[0])
        begin = time.perf_counter()
        waiting = iter(loads) if until_s is None else _until(loads, begin + until_s)

        async def work() -> None:
            for load in waiting:
                sent = time.perf_counter()
                reply = await _ask(client, load)
                told.append(_told(reply, begin, sent))

        async with asyncio.TaskGroup() as workers:
            for _ in range(outstanding):
                workers.create_task(work())
    return told


async def _open(
    kafka: KafkaSettings, loads: Sequence[Load], moments: NDArray[np.float64], deadline_s: float | None
) -> list[Told]:
    told: list[Told] = []
    async with RecallClient(kafka, timeout=TIMEOUT_S) as client:
        await _ask(client, loads[0])
        begin, wall = time.perf_counter() + _BREATH_S, time.time() + _BREATH_S

        async def send(load: Load, moment: float) -> None:
            limit = {} if deadline_s is None else {"deadline_ms": round((wall + moment + deadline_s) * 1e3)}
            told.append(_told(await _ask(client, load, **limit), begin, begin + moment))

        async with asyncio.TaskGroup() as tasks:
            for load, moment in zip(loads, moments.tolist(), strict=True):
                await asyncio.sleep(max(0.0, begin + moment - time.perf_counter()))
                tasks.create_task(send(load, moment))
    return told


def _until(loads: Sequence[Load], end: float) -> Iterator[Load]:
    """Round and round."""
    number = 0
    while time.perf_counter() < end:
        yield loads[number % len(loads)]
        number += 1


async def _ask(client: RecallClient, load: Load, **options: Any) -> RecallReply:
    try:
        return await client.recall(history=load.history, beam={"width": load.width}, top_k=load.top_k, **options)
    except RecallError as error:
        return error.reply


def _told(reply: RecallReply, begin: float, due: float) -> Told:
    return Told(reply.status, tuple(reply.degraded), reply.timing_ms, due - begin, time.perf_counter() - due)
