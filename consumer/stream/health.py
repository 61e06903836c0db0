"""What the Kafka client says of the brokers, and how long it has been bad."""

from collections.abc import Callable

import msgspec

from consumer.stream.errors import AUTHENTICATION, OUTAGE
from consumer.stream.outage import Outage
from consumer.stream.settings import KafkaSettings


class _Broker(msgspec.Struct):
    state: str


class _Statistics(msgspec.Struct):
    brokers: dict[str, _Broker] = {}


class ClientHealth:
    """``clock`` gives monotonic seconds. A record, an answer or a live connection is a sign of life."""

    def __init__(self, settings: KafkaSettings, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._outages = (
            (
                OUTAGE,
                Outage(settings.brokers_down_limit_s),
                f"no broker can be reached at {settings.bootstrap_servers}",
            ),
            (AUTHENTICATION, Outage(settings.authentication_limit_s), "the brokers refuse our credentials"),
        )

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is wrong now."""
        return tuple(meaning for _, outage, meaning in self._outages if outage.running)

    @property
    def away(self) -> bool:
        """No broker can be reached or logged in at."""
        return any(outage.running for _, outage, _ in self._outages)

    @property
    def over_limit(self) -> str | None:
        """What has been wrong for longer than it may."""
        now = self._clock()
        return next((meaning for _, outage, meaning in self._outages if outage.over_limit(now)), None)

    def error(self, code: int) -> None:
        """The client reports ``code`` for itself or a connection."""
        for codes, outage, _ in self._outages:
            if code in codes:
                outage.note(self._clock())

    def statistics(self, text: str) -> None:
        """The client's own figures, JSON."""
        brokers = msgspec.json.decode(text, type=_Statistics).brokers
        if any(broker.state == "UP" for broker in brokers.values()):  # connected and logged in
            self.alive()

    def alive(self) -> None:
        for _, outage, _ in self._outages:
            outage.clear()
