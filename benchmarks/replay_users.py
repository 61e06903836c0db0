"""The users of a replayed day: who asks when, and what became of it."""

import asyncio
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np

from benchmarks.replay_day import Day, Visit
from benchmarks.results import Row
from consumer.client import RecallClient, RecallError, RecallReply
from consumer.stream.settings import KafkaSettings
from engine.errors import RecallstreamError

TIMEOUT_S = 60.0
WINDOW, LEVEL = 100, 0.95
"""Visits that are compared with the same ones of an undisturbed run, and how near they have to come."""

BIN_S = 0.5
"""Of the series."""

_LOOK_AHEAD = 512
_halfway: Event | None = None


@dataclass(frozen=True, slots=True)
class OtherProcess:
    """Where users live: they take no time from the service's interpreter. ``halfway`` is set when half of those who
    come in turn were answered.
    """

    process: ProcessPoolExecutor
    halfway: Event


@contextmanager
def other_process() -> Iterator[OtherProcess]:
    """It gets ready beside what the caller does next."""
    context = multiprocessing.get_context("spawn")
    halfway = context.Event()
    with ProcessPoolExecutor(1, context, _tell, (halfway,)) as process:
        process.submit(int)
        yield OtherProcess(process, halfway)


def _tell(halfway: Event) -> None:
    global _halfway
    _halfway = halfway


@dataclass(frozen=True, slots=True)
class Answer:
    """``at``: seconds since the replay began; ``ms``: since the visit was due. ``whole``: no history was held."""

    at: float
    ms: float
    context_tokens: int
    reused_tokens: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Users:
    """A visit sends what is new; where no history is held for the user, all of it.

    A user waits for his reply: his next visit is due when that is there at the earliest.
    """

    kafka: KafkaSettings
    day: Day
    beam: int

    def in_turn(self, visits: Sequence[Visit], outstanding: int) -> list[Answer]:
        """In their order, as fast as they are answered, so many in the air."""
        return asyncio.run(_InTheAir(self).in_turn(visits, outstanding))

    def in_time(self, visits: Sequence[Visit], seconds: float) -> list[Answer]:
        """At their times of the day, which goes by so fast that these visits take ``seconds``."""
        return asyncio.run(_InTheAir(self).in_time(visits, seconds))


class _InTheAir:
    def __init__(self, users: Users) -> None:
        self._users = users
        self._client = RecallClient(users.kafka, timeout=TIMEOUT_S)
        self._asked: dict[str, Any] = {"beam": {"width": users.beam}, "top_k": min(100, users.beam)}
        self._answers: list[Answer] = []
        self._begun = 0.0

    async def in_turn(self, visits: Sequence[Visit], outstanding: int) -> list[Answer]:
        waiting, busy, freed = deque(visits), set[int](), asyncio.Condition()

        def take() -> Visit | None:
            for place in range(min(_LOOK_AHEAD, len(waiting))):
                if (visit := waiting[place]).user not in busy:
                    del waiting[place]
                    busy.add(visit.user)
                    return visit
            return None

        async def work() -> None:
            while waiting:
                async with freed:
                    visit = take()
                    if visit is None:
                        await freed.wait()
                        continue
                await self._visit(visit, time.perf_counter())
                if len(self._answers) == len(visits) // 2 and _halfway is not None:
                    _halfway.set()
                async with freed:
                    busy.remove(visit.user)
                    freed.notify_all()

        async with self._client:
            self._begun = time.perf_counter()
            async with asyncio.TaskGroup() as workers:
                for _ in range(outstanding):
                    workers.create_task(work())
        return self._answers

    async def in_time(self, visits: Sequence[Visit], seconds: float) -> list[Answer]:
        locks = {visit.user: asyncio.Lock() for visit in visits}
        free: dict[int, float] = {}
        first, last = visits[0].at, visits[-1].at

        async def come(visit: Visit, due: float) -> None:
            async with locks[visit.user]:
                await self._visit(visit, max(due, free.get(visit.user, due)))
                free[visit.user] = time.perf_counter()

        async with self._client:
            self._begun = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                for visit in visits:
                    due = self._begun + (visit.at - first) * seconds / max(1, last - first)
                    await asyncio.sleep(max(0.0, due - time.perf_counter()))
                    tasks.create_task(come(visit, due))
        return self._answers

    async def _visit(self, visit: Visit, due: float) -> None:
        user, day, whole = f"u{visit.user}", self._users.day, False
        try:
            reply = await self._client.recall(user_id=user, append=day.new(visit), **self._asked)
        except RecallError as error:
            if error.code != "need_history":
                raise
            whole = True
            reply = await self._client.recall(user_id=user, history=day.history(visit), **self._asked)
        now = time.perf_counter()
        self._answers.append(_answer(reply, now - self._begun, (now - due) * 1e3, whole))


def _answer(reply: RecallReply, at: float, ms: float, whole: bool) -> Answer:
    if reply.status != "ok":
        raise RecallstreamError(f"a reply of status {reply.status}: {reply.error}")
    return Answer(at, ms, reply.context_tokens, reply.reused_tokens, whole)


def summary(answers: Sequence[Answer]) -> Row:
    """Of all visits: ``hits``, those that found a session; ``reused``, the share of all context tokens that were there
    already. ``series``: for each ``BIN_S`` answers, context tokens, reused tokens.
    """
    seconds = max(answer.at for answer in answers)
    latencies = [answer.ms for answer in answers]
    return {
        "visits": len(answers),
        "seconds": round(seconds, 3),
        "requests_per_s": round(len(answers) / seconds, 3),
        **{f"p{at}_ms": round(float(np.percentile(latencies, at)), 3) for at in (50, 99)},
        "max_ms": round(max(latencies), 3),
        "whole_histories": sum(answer.whole for answer in answers),
        "hits": round(sum(answer.reused_tokens > 0 for answer in answers) / len(answers), 4),
        "context_tokens": sum(answer.context_tokens for answer in answers),
        "reused_tokens": sum(answer.reused_tokens for answer in answers),
        "reused": round(_reused(answers), 4),
        "mean_context": round(sum(answer.context_tokens for answer in answers) / len(answers)),
        "series": _series(answers),
    }


def warm_again(answers: Sequence[Answer], undisturbed: Sequence[Answer], restart: float) -> Row:
    """What a restart at second ``restart`` cost: ``silence_s``, the longest time without an answer after it; from its
    end on ``warm_s`` until as large a share of the context tokens was there already, and ``fast_s`` until answers came
    as fast, as for the same visits of a run that was not disturbed. None: never.
    """
    ours, theirs = sorted(answers, key=_at), sorted(undisturbed, key=_at)
    begin = next((place for place, answer in enumerate(ours) if answer.at > restart), len(ours))
    gaps = [
        (later.at - earlier.at, place) for place, (earlier, later) in enumerate(pairwise(ours)) if place + 1 >= begin
    ]
    silence, place = max(gaps, default=(0.0, begin))
    back = place + 1
    places = range(back, min(len(ours), len(theirs)) - WINDOW)

    def first(reached: Callable[[Sequence[Answer], Sequence[Answer]], bool]) -> float | None:
        """Seconds until the first window like that begins."""
        found = (at for at in places if reached(ours[at : at + WINDOW], theirs[at : at + WINDOW]))
        at = next(found, None)
        return None if at is None else round(ours[at].at - ours[back].at, 3)

    return {
        "silence_s": round(silence, 3),
        "warm_s": first(lambda one, other: _reused(one) >= LEVEL * _reused(other)),
        "fast_s": first(lambda one, other: LEVEL * _seconds(one) <= _seconds(other)),
    }


def _at(answer: Answer) -> float:
    return answer.at


def _seconds(answers: Sequence[Answer]) -> float:
    return answers[-1].at - answers[0].at


def _reused(answers: Sequence[Answer]) -> float:
    tokens = sum(answer.context_tokens for answer in answers)
    return sum(answer.reused_tokens for answer in answers) / tokens if tokens else 0.0


def _series(answers: Sequence[Answer]) -> list[tuple[int, int, int]]:
    found = [[0, 0, 0] for _ in range(int(max(answer.at for answer in answers) / BIN_S) + 1)]
    for answer in answers:
        for place, count in enumerate((1, answer.context_tokens, answer.reused_tokens)):
            found[int(answer.at / BIN_S)][place] += count
    return [(answers, context, reused) for answers, context, reused in found]
