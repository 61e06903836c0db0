"""Sends dead letters back to where they came from; each is reported once the broker has confirmed it."""

from collections.abc import Callable, Iterable

from consumer.stream.producer import Failure, ReplyProducer
from consumer.stream.settings import KafkaSettings
from consumer.wire.stored_letter import Origin, StoredLetter

MOST_UNCONFIRMED = 256
_POLL_S = 0.1

Report = Callable[[StoredLetter, Failure | None], None]
"""Hears the end of every letter: written, or why not."""


class Replay:
    """``unconfirmed``: letters sent whose end is not known. Raises StreamError when the producer is out for good."""

    def __init__(self, kafka: KafkaSettings, report: Report) -> None:
        self.unconfirmed = 0
        self._report = report
        self._producer: ReplyProducer[StoredLetter] = ReplyProducer(kafka, lambda _code: None)

    def send(self, letters: Iterable[tuple[StoredLetter, Origin]]) -> None:
        """Send all, and return when the end of each is known."""
        for letter, origin in letters:
            record = letter.record
            headers = [*letter.replay_headers()]
            self._producer.send(letter, origin.topic, record.key, record.value, headers, origin.partition)
            self.unconfirmed += 1
            self._collect(MOST_UNCONFIRMED - 1)
        self._collect(0)

    def close(self, budget: float) -> None:
        """Give unconfirmed letters ``budget`` seconds, then drop what has not left; all are reported."""
        if self.unconfirmed:
            self._producer.abandon(budget)
            self._hear(0.0)

    def _collect(self, most: int) -> None:
        """Hear of ends until at most ``most`` letters are left."""
        wait = 0.0
        while True:
            self._hear(wait)
            if self.unconfirmed <= most:
                return
            wait = _POLL_S

    def _hear(self, wait: float) -> None:
        reports = self._producer.poll(wait)
        self.unconfirmed -= len(reports)
        for delivered in reports.delivered:
            self._report(delivered, None)
        for sent, failure in reports.failed:
            self._report(sent, failure)
