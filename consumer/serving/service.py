"""The serving loop put together: intake, device and reply threads, their start, their end and the exit code."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from consumer.histories.items import Cap
from consumer.histories.settings import HistorySettings
from consumer.histories.store import HistoryStore
from consumer.serving.answers import Answers
from consumer.serving.bad_records import BadRecordLimit
from consumer.serving.batch_queue import BatchQueue
from consumer.serving.cost_model import UNKNOWN, CostModel, Prior
from consumer.serving.delivery import delivery_of
from consumer.serving.device import AnswerListener, DeviceLoop, ignore
from consumer.serving.errands import Errands
from consumer.serving.histories import Histories
from consumer.serving.intake import Intake
from consumer.serving.last_replies import Catalogs, LastReplies
from consumer.serving.load_settings import LoadSettings
from consumer.serving.observer import NullObserver, ServingObserver
from consumer.serving.reader import RequestReader
from consumer.serving.recaller import Recaller
from consumer.serving.repeats import RepeatCache
from consumer.serving.replies import ReplyLoop
from consumer.serving.settings import BatchSettings
from consumer.serving.snapshot import ServingSnapshot
from consumer.serving.tracing import RequestTracer
from consumer.serving.writer import ReplyWriter
from consumer.stream.errors import StreamError
from consumer.stream.settings import KafkaSettings
from consumer.wire.settings import RecallDefaults, WireLimits

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_STUCK = 3
"""Leaving the group outlived its budget and the process was ended hard."""

_POLL_S = 0.1
_JOIN_S = 1.0
_REPLY_FLUSH_S = 1.0

log = logging.getLogger(__name__)


class ServingLoop:
    """Serves one engine to one consumer group. Raises StreamError if the settings are refused.

    ``active_catalog`` names the version that requests are served from which ask for none; without it, requests that
    come again go through the engine again. ``prior``: what a batch takes before one was measured; ``catalogs`` are
    needed where ``load`` has last replies sent. ``store`` has the durable copy of the histories, unless
    ``histories.store`` is off. ``errands`` are served between batches; ``answered`` hears of every batch, on the device
    thread. ``start`` once, then either ``run_until_stopped`` (a process) or ``stop`` (from any thread).
    """

    def __init__(
        self,
        engine: Recaller,
        *,
        kafka: KafkaSettings,
        batch: BatchSettings,
        limits: WireLimits,
        defaults: RecallDefaults,
        load: LoadSettings | None = None,
        prior: Prior = UNKNOWN,
        catalogs: Catalogs | None = None,
        histories: HistorySettings | None = None,
        store: HistoryStore | None = None,
        active_catalog: Callable[[], str | None] = lambda: None,
        errands: Errands | None = None,
        answered: AnswerListener = ignore,
        observer: ServingObserver | None = None,
        tracer: RequestTracer | None = None,
        clock: Callable[[], float] = time.monotonic,
        end_process: Callable[[int], None] = os._exit,
    ) -> None:
        if batch.revoke_drain_s * 2_000 > kafka.max_poll_interval_ms:
            raise StreamError("batch.revoke_drain_s must not be above half of kafka.max_poll_interval_ms")
        self._observer = observer or NullObserver()
        self._settings = batch
        self._clock = clock
        self._end_process = end_process
        self._stopping = threading.Event()
        self._signals = 0
        self._failure: str | None = None
        errands = errands or Errands()
        load = load or LoadSettings()
        self._costs = CostModel(prior)
        self._last_replies = (
            LastReplies(load, catalogs, clock) if catalogs is not None and "last_reply" in load.degrade else None
        )
        answers = Answers(lambda jobs: self._histories.answer(jobs), self._last_replies, self._observer)
        self._queue = BatchQueue(
            batch,
            clock,
            answers.expired,
            errands,
            load=load,
            costs=self._costs,
            turned_away=answers.turned_away,
        )
        limit, repeats = BadRecordLimit(batch), RepeatCache(batch, active_catalog, clock)
        writer = ReplyWriter(kafka, self._observer, clock, limit, repeats, tracer)
        publisher, commits = delivery_of(
            kafka, batch, writer, lambda items: self._intake.confirmed(items), self._observer, clock, self._halted
        )
        self._replies = ReplyLoop(publisher)
        reader = RequestReader(engine, kafka, limits, defaults, repeats, load)
        self._histories = Histories(
            histories or HistorySettings(),
            Cap(engine.spec.max_history_items, engine.spec.history_drop),
            store,
            reader,
            self._queue.add,
            self._replies.put,
            answers.expired,
            lambda user: self._forget(user, errands),
            errands.drop,
            clock,
        )
        self._device = DeviceLoop(engine, self._queue, answers.served, self._observer, clock, answered)
        self._intake = Intake(
            kafka,
            batch,
            reader,
            self._queue,
            self._histories,
            self._observer,
            clock,
            self._halted,
            limit,
            commits,
        )
        self._intake_thread = self._thread("intake", self._run_intake)
        self._device_thread = self._thread("device", lambda: self._guard("device", self._device.run))
        self._store_thread = self._thread("histories", lambda: self._guard("histories", self._histories.run))
        self._reply_thread = self._thread("replies", lambda: self._guard("replies", self._replies.run))

    @property
    def failure(self) -> str | None:
        """What ended the loop, none while it runs and after a clean stop."""
        return self._failure

    def start(self) -> None:
        """Join the group and serve."""
        for thread in (self._reply_thread, self._device_thread, self._store_thread, self._intake_thread):
            thread.start()

    def drain(self) -> None:
        """Tell ``run_until_stopped`` to drain, as the first signal does; from any thread, any number of times."""
        self._stopping.set()

    def stop(self) -> int:
        """Finish what was read, commit, leave the group; wait for all that and return the exit code."""
        self._stopping.set()
        return self._finish()

    def run_until_stopped(self) -> int:
        """Serve until SIGTERM, SIGINT or a failure; return the exit code. From the main thread.

        The first signal drains, a second one ends the process at once, without a commit.
        """
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while not self._stopping.wait(_POLL_S):
                if self._signals:
                    self._stopping.set()
            return self._finish()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @staticmethod
    def _thread(name: str, run: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=run, name=name, daemon=True)

    def snapshot(self) -> ServingSnapshot:
        """The state now; from any thread."""
        view = self._intake.view
        return ServingSnapshot(
            partitions=view.partitions,
            queued=len(self._queue),
            queued_tokens=self._queue.tokens,
            running=self._device.running,
            in_flight=view.in_flight,
            in_flight_bytes=view.in_flight_bytes,
            paused=view.paused,
            tick_age=max(0.0, self._clock() - self._intake.tick),
            not_ready=self._not_ready(),
            failure=self._failure,
            group=view.group,
            step=self._queue.step,
            prediction_errors=dict(self._costs.errors()),
            histories=self._histories.snapshot(),
        )

    def _halted(self) -> bool:
        return self._failure is not None

    def _not_ready(self) -> tuple[str, ...]:
        reasons: list[str] = []
        if self._failure is not None:
            reasons.append(f"failed: {self._failure}")
        elif self._stopping.is_set() or self._signals:
            reasons.append("draining")
        view = self._intake.view
        if not view.joined:
            reasons.append(": ".join(["not a member of the consumer group yet", *view.troubles]))
        else:
            reasons += view.missing
        return tuple(reasons)

    def _run_intake(self) -> None:
        self._guard("intake", lambda: self._intake.run(self._stopping.is_set))
        self._guard("intake", self._intake.leave)

    def _guard(self, name: str, run: Callable[[], None]) -> None:
        try:
            run()
        except:  # noqa: E722  a misused client can raise an object that is no BaseException; no thread ends unnoticed
            log.exception("the %s thread failed", name)
            self._fail(f"{name}: {sys.exc_info()[1]}")

    def _fail(self, reason: str) -> None:
        """The process is going to end: nothing is committed from here on."""
        self._failure = self._failure or reason
        self._queue.close()
        self._stopping.set()

    def _finish(self) -> int:
        drain_s = self._settings.drain_s if self._failure is None else 0.0
        watchdog = threading.Timer(drain_s + self._settings.close_s + _JOIN_S, self._end_stuck)
        watchdog.daemon = True
        watchdog.start()
        if self._intake_thread.ident is None:
            self._intake.leave()
        else:
            self._intake_thread.join()
        self._queue.close()
        self._histories.stop()
        self._replies.stop()
        for thread in (self._device_thread, self._reply_thread, self._store_thread):
            if thread.ident is not None:
                thread.join(_JOIN_S)
        if not self._reply_thread.is_alive():
            self._abandon_replies()
        watchdog.cancel()
        return EXIT_OK if self._failure is None else EXIT_FAILED

    def _abandon_replies(self) -> None:
        try:
            self._replies.abandon(_REPLY_FLUSH_S)
        except StreamError as error:  # all that was committed is confirmed already
            log.warning("unconfirmed replies were dropped: %s", error)

    def _end_stuck(self) -> None:
        log.error("leaving the group outlived its budget")
        self._end_process(EXIT_STUCK)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # A flag only: an event's lock may be held by the very code that the signal interrupts.
        self._signals += 1
        if self._signals > 1:
            self._end_process(128 + number)

    def _forget(self, user: str, errands: Errands) -> None:
        """Nothing of the user stays in this process."""
        if self._last_replies is not None:
            self._last_replies.forget(user)
        errands.forget(user)
