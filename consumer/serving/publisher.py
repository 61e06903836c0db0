"""How answers reach their topics: the two publishers' common face, and the one that sends each when it is ready."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
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
        self._outstanding: defaultdict[str, int] = defaultdict(int)  # sends without a report, by topic
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
        for sent in due:
            self._send(sent)
        wait = _REPORTS_S if self._unreported > _FEW else _FEW_REPORTS_S
        self._collect(wait if self._unreported else 0.0)
        self._isolate()

    def abandon(self, budget: float) -> None:
        self._producer.abandon(budget)

    def _send(self, sent: Sent) -> None:
        self._outstanding[sent.topic] += 1
        self._unreported += 1
        self._writer.send(sent, self._producer)

    def _collect(self, timeout: float) -> None:
        deliveries = self._producer.poll(timeout)
        delivered = [delivery.sent for delivery in deliveries if delivery.failure is None]
        if delivered:
            self._writer.delivered(delivered, self._clock())
        self._unreported -= len(deliveries)
        for delivery in deliveries:
            sent, failure = delivery.sent, delivery.failure
            self._outstanding[sent.topic] -= 1
            instead = None if failure is None else self._writer.instead(sent, failure)
            if instead is None:
                item = sent.item
                item.awaiting -= 1
                if not item.awaiting:
                    self._finished.append(item)
            elif instead.alone and not sent.alone:
                self._suspects.append(instead)
            else:
                self._send(instead)
        if self._finished:
            finished, self._finished = self._finished, []
            self._writer.finished(finished)
            self._confirmed(finished)

    def _isolate(self) -> None:
        """Send again what was refused, each with nothing beside it: only the culprits are refused then."""
        while self._suspects:
            suspect = self._suspects.popleft()
            self._await_reports(suspect.topic)
            self._send(suspect)
            self._await_reports(suspect.topic)

    def _await_reports(self, topic: str) -> None:
        while self._outstanding[topic]:
            self._collect(_REPORTS_S)
