"""What the serving loop reports while it works. Called from its threads: implementations are thread-safe and quick."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from engine.errors import ErrorCode

CloseReason = Literal["idle", "requests", "tokens", "window", "deadline"]
"""Why a batch stopped waiting for more requests."""

Stage = Literal["admission", "queue", "reply"]
Reason = Literal["late", "quota"]
"""Why a request is turned away: too much is waiting; another caller's has a better right to what can be served."""

Rebalance = Literal["assigned", "revoked", "lost"]


class Replied(msgspec.Struct, frozen=True):
    """Replies that the broker took, column by column. Times are milliseconds from a request's admission.

    Of the replies with items: how long they waited, prefill and decode of their batches, until they were written, and
    how many of them are ``in_time``. ``confirmed_ms``: of all replies, to the broker's word. ``errors``: the codes of
    those without items.
    """

    queue_ms: Sequence[float]
    prefill_ms: Sequence[float]
    decode_ms: Sequence[float]
    total_ms: Sequence[float]
    confirmed_ms: Sequence[float]
    in_time: int = 0
    errors: Sequence[ErrorCode] = ()


class ServingObserver(Protocol):
    """Every event that is worth a metric."""

    def received(self, records: int, size: int) -> None:
        """Records were read; ``size`` is the bytes of their values."""

    def bad_record(self, code: str) -> None:
        """A record was no servable request; ``code`` is its error."""

    def clock_skew(self, seconds: float) -> None:
        """A record's timestamp lies so far in our future."""

    def batch_closed(self, requests: int, tokens: int, reason: CloseReason) -> None:
        """A batch goes to the engine."""

    def batch_finished(self, seconds: float, expected: float) -> None:
        """The engine answered a batch, after so long; ``expected`` is what was predicted."""

    def batch_failed(self, requests: int) -> None:
        """The engine raised for a batch, which is now tried in parts."""

    def coalesced(self, requests: int) -> None:
        """So many requests are served with another one's run."""

    def turned_away(self, reason: Reason) -> None:
        """A request is not served, because it could not be answered in time."""

    def degraded(self, steps: Sequence[str]) -> None:
        """A reply with items says what was given up for it."""

    def expired(self, stage: Stage) -> None:
        """A request's deadline passed, noticed there."""

    def replied(self, replies: Replied) -> None:
        """The broker acknowledged replies."""

    def repeated(self) -> None:
        """A request came again and is answered with the reply that was kept."""

    def dead_letter(self, reason: str) -> None:
        """A record was handed to the producer as a dead letter."""

    def late_result(self) -> None:
        """A request was finished for a partition that is no longer ours; its offset was left alone."""

    def committed(self, ok: bool) -> None:
        """One commit's answer."""

    def rebalanced(self, kind: Rebalance, partitions: int) -> None:
        """Partitions came or went."""

    def offset_reset(self, skipped: int) -> None:
        """A partition had no usable committed offset and started elsewhere, passing over ``skipped`` records."""

    def paused(self, seconds: float) -> None:
        """Reading went on after so long a pause."""

    def client_error(self, client: Literal["consumer", "producer"], code: str) -> None:
        """librdkafka reported an error that it handles itself."""


class NullObserver:
    """Observes nothing."""

    def received(self, records: int, size: int) -> None: ...
    def bad_record(self, code: str) -> None: ...
    def clock_skew(self, seconds: float) -> None: ...
    def batch_closed(self, requests: int, tokens: int, reason: CloseReason) -> None: ...
    def batch_finished(self, seconds: float, expected: float) -> None: ...
    def batch_failed(self, requests: int) -> None: ...
    def coalesced(self, requests: int) -> None: ...
    def turned_away(self, reason: Reason) -> None: ...
    def degraded(self, steps: Sequence[str]) -> None: ...
    def expired(self, stage: Stage) -> None: ...
    def replied(self, replies: Replied) -> None: ...
    def repeated(self) -> None: ...
    def dead_letter(self, reason: str) -> None: ...
    def late_result(self) -> None: ...
    def committed(self, ok: bool) -> None: ...
    def rebalanced(self, kind: Rebalance, partitions: int) -> None: ...
    def offset_reset(self, skipped: int) -> None: ...
    def paused(self, seconds: float) -> None: ...
    def client_error(self, client: Literal["consumer", "producer"], code: str) -> None: ...
