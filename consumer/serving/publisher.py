"""How answers reach their topics: the two publishers' common face, and the one that sends each when it is ready."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Protocol

from consumer.serving.in_flight import InFlight, Job
from consumer.serving.observer import ServingObserver
from consumer.serving.writer import ReplyWriter, Sent
from consumer.stream.producer import ReplyProducer
from consumer.stream.settings import KafkaSettings

IDLE_S = 0.1
_REPORTS_S, _FEW_REPORTS_S = 0.05, 0.002
"""Longest wait for the brokers before what is ready meanwhile is sent beside it: one of them may be away or slow."""
_FEW = 16
"""Fewer sends under way hardly ever meet others on their partition."""
_TOPIC = attrgetter("topic")


class Publisher(Protocol):
    """Belongs to the reply thread. Raises StreamError for anything that cannot be delivered."""

    @property
    def at_once(self) -> int:
        """The most answers that ``publish`` wants."""

    @property
    def patience(self) -> float:
        """Seconds after which ``publish`` wants to be called, if only with nothing."""

    def start(self) -> None:
        """Before anything is published; may take its time."""

    def publish(self, jobs: Sequence[Job]) -> None:
        """Take what records came to, and get on with what was taken before."""

    def abandon(self, budget: float) -> None:
        """Give unconfirmed sends ``budget`` seconds to leave, then drop them."""


class AtLeastOnce:
    """Replies leave when they are ready. ``confirmed`` hears of records once the brokers have all that they caused."""

    at_once = 256

    def __init__(
        self,
        settings: KafkaSettings,
        writer: ReplyWriter,
        confirmed: Callable[[Sequence[InFlight]], None],
        observer: ServingObserver,
        clock: Callable[[], float],
    ) -> None:
        self._writer = writer
        self._confirmed = confirmed
        self._clock = clock
        self._outstanding: Counter[str] = Counter()  # sends without a report, by topic
        self._unreported = 0
        self._finished: list[InFlight] = []
        self._suspects: deque[Sent] = deque()
        self._producer: ReplyProducer[Sent] = ReplyProducer(
            settings, lambda code: observer.client_error("producer", code)
        )

    @property
    def patience(self) -> float:
        return 0.0 if self._unreported else IDLE_S

    def start(self) -> None:
        """Nothing to do."""

    def publish(self, jobs: Sequence[Job]) -> None:
        due, now = list[Sent](), self._clock()
        for job in jobs:
            sends = self._writer.write(job, now)
            job.item.awaiting = len(sends)
            due += sends
            if not sends:
                self._finished.append(job.item)
        self._send(due)
        wait = _REPORTS_S if self._unreported > _FEW else _FEW_REPORTS_S
        self._collect(wait if self._unreported else 0.0)
        self._isolate()

    def abandon(self, budget: float) -> None:
        self._producer.abandon(budget)

    def _send(self, sends: Sequence[Sent]) -> None:
        self._outstanding.update(map(_TOPIC, sends))
        self._unreported += len(sends)
        self._writer.send(sends, self._producer)

    def _collect(self, timeout: float) -> None:
        reports = self._producer.poll(timeout)
        self._unreported -= len(reports)
        if reports.delivered:
            self._writer.delivered(reports.delivered, self._clock())
            self._outstanding.subtract(map(_TOPIC, reports.delivered))
            self._over(reports.delivered)
        for sent, failure in reports.failed:
            self._outstanding[sent.topic] -= 1
            instead = self._writer.instead(sent, failure)
            if instead is None:
                self._over([sent])
            elif instead.alone and not sent.alone:
                self._suspects.append(instead)
            else:
                self._send([instead])
        if self._finished:
            finished, self._finished = self._finished, []
            self._writer.finished(finished)
            self._confirmed(finished)

    def _over(self, sends: Sequence[Sent]) -> None:
        for sent in sends:
            item = sent.item
            item.awaiting -= 1
            if not item.awaiting:
                self._finished.append(item)

    def _isolate(self) -> None:
        """Send again what was refused, each with nothing beside it: only the culprits are refused then."""
        while self._suspects:
            suspect = self._suspects.popleft()
            self._await_reports(suspect.topic)
            self._send([suspect])
            self._await_reports(suspect.topic)

    def _await_reports(self, topic: str) -> None:
        while self._outstanding[topic]:
            self._collect(_REPORTS_S)
