"""One record on its way through the service, from its delivery to the confirmation of all that it causes."""

from collections.abc import Hashable, Sequence

import msgspec

from consumer.histories.operation import Brought, Operation, UserKey
from consumer.serving.offsets import Ownership, Ticket
from consumer.serving.recaller import Answer
from consumer.serving.tracing import RequestTrace
from consumer.wire.dead_letter import SourceRecord
from consumer.wire.errors import Addressee
from consumer.wire.headers import HEADER_OVERHEAD, RECORD_OVERHEAD, RequestHeaders
from engine.errors import ErrorCode
from engine.request import RecallRequest

BAD_RECORD: frozenset[ErrorCode] = frozenset({"bad_request", "unsupported_version", "too_large", "internal"})
"""Errors after which the record itself is kept as a dead letter: sending it again would fail again."""


class InFlight(msgspec.Struct, eq=False):
    """Times are seconds on the monotonic clock; ``started`` is when the engine took it, none before.

    ``reply_topic`` is none where no reply can be addressed; ``identity`` (``repeats.py``) is the name under which its
    reply is kept. ``priority``, ``caller`` and ``run_key`` are for the batcher. ``awaiting`` counts sends that are not
    confirmed and, with ``dead_lettered``, belongs to the reply thread.
    """

    record: SourceRecord
    ownership: Ownership
    admitted: float
    deadline: float
    headers: RequestHeaders
    reply_topic: str | None
    addressee: Addressee
    size: int
    """Bytes that it counts for in admission."""
    identity: Hashable | None = None
    request: RecallRequest | None = None
    tokens: int = 0
    priority: int = 5
    caller: str = ""
    run_key: Hashable | None = None
    started: float | None = None
    trace: RequestTrace | None = None
    awaiting: int = 0
    dead_lettered: bool = False
    operation: "Operation[InFlight] | Brought | None" = None
    """What it wants of its user's history, until that is said."""
    saving: bool = False
    """What it came to waits, in ``pending``, for the store of histories."""
    pending: "Job | None" = None

    @property
    def ticket(self) -> Ticket:
        """Its place among those that were delivered."""
        return Ticket(self.ownership.partition, self.record.offset, self.ownership.epoch)

    @property
    def user(self) -> UserKey | None:
        """Whose it is; users of two topics are two."""
        name = self.addressee.user_id
        return None if name is None else UserKey(self.record.topic, name)

    @property
    def asked(self) -> RecallRequest:
        """The request of one that was queued."""
        return self.request  # type: ignore[return-value]  # it has one, and a check would be half of what this costs


def size_of(record: SourceRecord, ids: int = 0) -> int:
    """What it counts for in admission, where the ``ids`` that were read of its value take so many bytes.

    A key or headers may be as large as a value, and ids are larger: of three bytes of text come sixty.
    """
    key, value = record.key, record.value
    size = RECORD_OVERHEAD + (0 if key is None else len(key))
    read = 0 if value is None else len(value)
    for name, content in record.headers:
        size += HEADER_OVERHEAD + len(name) + (0 if content is None else len(content))
    return size + (read if read > ids else ids)


class Outcome(msgspec.Struct, frozen=True, eq=False):
    """What a record comes to: an answer to be sent, and for a bad record the stage that found it bad.

    ``degraded``: what was given up for it; ``age_s``: of an answer that was made before, in seconds.
    """

    item: InFlight
    answer: Answer
    stage: str
    degraded: Sequence[str] = ()
    age_s: float | None = None


class Repeat(msgspec.Struct, frozen=True, eq=False):
    """A request that was answered before: the encoded reply, and the catalog version in it."""

    item: InFlight
    value: bytes
    catalog: str


class Denied(msgspec.Struct, frozen=True, eq=False):
    """A record that must not be answered where it asks to be: a dead letter, nothing else."""

    item: InFlight
    message: str


class Done(msgspec.Struct, frozen=True, eq=False):
    """A record that nobody is answered for; ``cancels`` is the request that its user no longer wants."""

    item: InFlight
    cancels: str | None = None


Job = Outcome | Repeat | Denied | Done
"""What a record comes to."""
