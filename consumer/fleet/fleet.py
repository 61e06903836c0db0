"""The parent: one process per GPU, all in one consumer group; starts them, watches them, ends them."""

import logging
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from threading import Lock
from types import FrameType
from typing import Any, Protocol

from catalog_sync.backoff import Backoff
from consumer.fleet.channel import Channel, Question, ask
from consumer.fleet.gpus import Gpu

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_STUCK = 3

ANSWER_S = 1.0
"""Longest wait for the answers of the processes."""
POLL_S = 0.1
HEALTH_EVERY_S = 0.5
RESTART_FIRST_S = 1.0
RESTART_CAP_S = 60.0
RESTART_JITTER = 0.2
STABLE_S = 300.0
"""A process that ran for so long has not failed at its start: the next pause is the first one again."""
KILL_AFTER_S = 5.0
"""On top of what a process may take to drain: it ends itself by then."""

log = logging.getLogger(__name__)


class Process(Protocol):
    """``consumer.fleet.process.GpuProcess``."""

    channel: Channel
    pid: int | None

    @property
    def sentinel(self) -> int: ...
    @property
    def exit_code(self) -> int | None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class Member:
    """One GPU and its process, none between an end and the next start.

    ``unready`` and ``faults`` are what the process last said of itself, ``heard`` is when; ``served``: one of its
    processes was ready at least once.
    """

    gpu: Gpu
    process: Process | None = None
    started: float = 0.0
    heard: float = 0.0
    unready: tuple[str, ...] = ("starting",)
    faults: tuple[str, ...] = ()
    served: bool = False
    restarts: int = 0
    restart_at: float = 0.0
    backoff: Backoff = field(
        default_factory=lambda: Backoff(RESTART_FIRST_S, RESTART_CAP_S, RESTART_JITTER, random.random)
    )
    last_exit: int | None = None


class Fleet:
    """Runs one process per GPU.

    A process that ends before its GPU has ever been ready fails the start: the others drain, the exit code is not 0.
    Later on it is started again after a pause, while the others serve its partitions.

    ``launch`` starts a process; ``drain_s`` is what a process may take to end by itself. ``ask`` and ``members`` are
    for the HTTP thread too, everything else for the main thread: ``run_until_stopped``, or ``start``, turns, ``drain``.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        launch: Callable[[Gpu], Process],
        drain_s: float,
        clock: Callable[[], float] = time.monotonic,
        end_process: Callable[[int], None] = os._exit,
    ) -> None:
        self.members = tuple(Member(gpu) for gpu in gpus)
        self.draining = False
        self.failed = False
        self._launch = launch
        self._budget_s = drain_s + KILL_AFTER_S
        self._clock = clock
        self._end_process = end_process
        self._channels = Lock()
        self._signals = 0
        self._asked = clock()

    def run_until_stopped(self) -> int:
        """Serve until SIGTERM, SIGINT or a failed start; return the exit code. From the main thread.

        The first signal drains, a second one kills what is left, without a commit.
        """
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self.start()
            while not self._signals and not self.failed:
                self.turn(POLL_S)
            return self.drain()
        finally:
            self._kill()
            for number, handler in before.items():
                signal.signal(number, handler)

    def ask(self, question: Question) -> list[Any | None]:
        """One answer per member; none where there is no process, or none that answers in time."""
        with self._channels:
            answers = iter(ask([process.channel for _, process in self._running()], question, ANSWER_S))
            return [next(answers) if member.process else None for member in self.members]

    def start(self) -> None:
        """Start a process on every GPU."""
        for member in self.members:
            self._start(member)

    def turn(self, timeout: float) -> None:
        """Notice what has ended, start what is due, hear how the others are; waits ``timeout`` seconds for an end."""
        wait([process.sentinel for _, process in self._running()], timeout)
        if self._signals:
            return  # it may have reached the processes, too: what has ended did as it was told
        now = self._clock()
        for member, code in self._take_ended():
            self._ended(member, code, now)
        for member in self.members:
            if not self.failed and not member.process and now >= member.restart_at:
                self._start(member)
        if now - self._asked >= HEALTH_EVERY_S:
            self._asked = now
            self._hear(now)

    def drain(self) -> int:
        """Have every process finish what it has read, and wait for that; returns the exit code of the fleet."""
        self.draining = True
        with self._channels:
            for _, process in self._running():
                process.channel.drain()
        codes = [EXIT_FAILED] if self.failed else []
        deadline = self._clock() + self._budget_s
        while running := self._running():
            if self._clock() >= deadline:
                log.error("GPU %s: still there after the drain", ", ".join(member.gpu.name for member, _ in running))
                return EXIT_STUCK
            wait([process.sentinel for _, process in running], POLL_S)
            codes += [_drained(code) for _, code in self._take_ended()]
        return max(codes, default=EXIT_OK)

    def _start(self, member: Member) -> None:
        process = self._launch(member.gpu)
        with self._channels:
            member.process = process
        member.unready, member.faults = ("starting",), ()
        member.started = member.heard = self._clock()
        log.info("GPU %s: process %s started", member.gpu.name, process.pid)

    def _ended(self, member: Member, code: int, now: float) -> None:
        if not member.served:
            log.error("GPU %s: its process ended with exit code %d before it was ready", member.gpu.name, code)
            self.failed = True
            return
        if now - member.started >= STABLE_S:
            member.backoff.reset()
        pause = member.backoff.pause()
        member.restart_at = now + pause
        member.restarts += 1
        member.unready = (f"its process ended with exit code {code} and is started again",)
        log.error("GPU %s: its process ended with exit code %d; next start in %.0f s", member.gpu.name, code, pause)

    def _running(self) -> list[tuple[Member, Process]]:
        return [(member, member.process) for member in self.members if member.process]

    def _take_ended(self) -> Iterator[tuple[Member, int]]:
        """Let go of the processes that have ended; gives their exit codes."""
        for member, process in self._running():
            code = process.exit_code
            if code is not None:
                with self._channels:
                    member.process, member.last_exit = None, code
                    process.close()
                member.faults = ()
                yield member, code

    def _hear(self, now: float) -> None:
        for member, answer in zip(self.members, self.ask("health"), strict=True):
            if answer is not None:
                member.unready, member.faults = answer
                member.heard = now
                member.served = member.served or not member.unready

    def _kill(self) -> None:
        for _, process in self._running():
            process.kill()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            self._kill()
            self._end_process(128 + number)


def _drained(code: int) -> int:
    """The exit code of a process that was told to end: SIGTERM may also have come before it could handle it."""
    if code == -signal.SIGTERM:
        return EXIT_OK
    return code if code >= 0 else EXIT_FAILED
