"""What the transactional publisher does with every end that a transaction can take; no broker, injected time."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumer.serving.bad_records import BadRecordLimit
from consumer.serving.in_flight import InFlight, Outcome
from consumer.serving.offsets import Ownership
from consumer.serving.repeats import RepeatCache
from consumer.serving.settings import BatchSettings
from consumer.serving.tracing import RequestTrace
from consumer.serving.transactional import AnsweredJob, Transactional
from consumer.serving.turns import Turns
from consumer.serving.writer import DeadLetterSent, ReplySent, ReplyWriter, Sent
from consumer.stream.errors import StreamError
from consumer.stream.partition import Partition
from consumer.stream.producer import Failure, FailureKind, Reports
from consumer.stream.settings import KafkaSettings
from consumer.stream.transactions import TransactionalProducer, TransactionError
from consumer.wire.dead_letter import SourceRecord
from consumer.wire.errors import WireError
from consumer.wire.headers import RequestHeaders
from engine.errors import RequestError
from tests.consumer.events import Events

P, Q = Partition("recall.requests", 0), Partition("recall.requests", 1)


@dataclass
class FakeProducer:
    """Takes everything, unless told what fails: sends by topic (of the next transaction only), steps by name."""

    failures: dict[str, Failure] = field(default_factory=dict)
    errors: dict[str, list[Exception]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    committed: list[tuple[list[Sent], dict[Partition, int]]] = field(default_factory=list)
    on_poll: Any = None
    absent: set[str] = field(default_factory=set)
    forbidden: set[str] = field(default_factory=set)
    """Topics for which a transaction fails with all its records."""
    partitions: int = 3
    """Of every topic."""
    _sent: list[Sent] = field(default_factory=list)
    _reports: Reports[Sent] = field(default_factory=Reports)
    _offsets: dict[Partition, int] = field(default_factory=dict)
    _fault: TransactionError | None = None

    def _step(self, name: str) -> None:
        self.calls.append(name)
        if self.errors.get(name):
            raise self.errors[name].pop(0)

    def start(self) -> None:
        self._step("start")

    def missing(self, topics: Collection[str]) -> set[str]:
        return self.absent & set(topics)

    def lacks(self, _topic: str, partition: int) -> bool:
        return partition >= self.partitions

    def begin(self) -> None:
        self._step("begin")
        self._sent, self._reports, self._offsets, self._fault = [], Reports(), {}, None

    def send(self, sent: Sent, topic: str, *_: object) -> None:
        self._sent.append(sent)
        if failure := self.failures.get(topic):
            self._reports.failed.append((sent, failure))
        else:
            self._reports.delivered.append(sent)
        if topic in self.forbidden:
            fell = Failure("other", "_PURGE_QUEUE", "purged", local=False)
            self._reports = Reports(failed=[(each, fell) for each in self._sent])
            self._fault = TransactionError("TOPIC_AUTHORIZATION_FAILED", "no")

    def fault(self) -> TransactionError | None:
        return self._fault

    def poll(self, _timeout: float) -> Reports[Sent]:
        if self.on_poll:
            self.on_poll()
        reports, self._reports = self._reports, Reports()
        return reports

    def add_offsets(self, offsets: Mapping[Partition, int], membership: bytes) -> None:
        self._step("offsets")
        assert membership == b"member"
        self._offsets = dict(offsets)

    def commit(self) -> None:
        self._step("commit")
        self.committed.append((self._sent, self._offsets))

    def abort(self) -> None:
        self.failures = {}
        self._step("abort")


class Tracer:
    """Remembers when each record was answered and when all was over."""

    def __init__(self) -> None:
        self.begun: dict[int, float] = {}
        self.ended: dict[int, float] = {}

    def begin(self, item: InFlight, _outcome: str, _result: object, now: float) -> RequestTrace:
        offset = item.ticket.offset
        self.begun[offset] = now
        return cast(
            "RequestTrace", SimpleNamespace(traceparent=None, end=lambda at, **_: self.ended.update({offset: at}))
        )


class Made:
    """A publisher on a fake producer, with what it confirmed."""

    def __init__(self, **changes: Any) -> None:
        self.now = 100.0
        self.kafka = KafkaSettings.model_validate({"delivery": "exactly-once", **changes})
        self.producer = FakeProducer()
        self.events = Events()
        self.confirmed: list[int] = []
        self.turns: Turns[AnsweredJob] = Turns(lambda: self.now)
        self.turns.member(b"member")
        batch, self.tracer = BatchSettings(), Tracer()
        writer = ReplyWriter(
            self.kafka,
            self.events,
            lambda: self.now,
            BadRecordLimit(batch),
            RepeatCache(batch, lambda: None, lambda: self.now),
            self.tracer,
        )
        self.publisher = Transactional(
            self.kafka,
            self.turns,
            writer,
            cast("TransactionalProducer[Sent]", self.producer),
            lambda items: self.confirmed.extend(item.ticket.offset for item in items),
            self.events,
            lambda: self.now,
        )

    def deliver(
        self, offset: int, partition: Partition = P, topic: str = "recall.replies", to: int | None = None
    ) -> Outcome:
        """A record, read; its answer, not given yet, which goes ``to`` this partition of ``topic``."""
        record = SourceRecord(*partition, offset, 0, b"k", b"v", (), True)
        item = InFlight(
            record,
            Ownership(partition, 1, 0),
            self.now,
            self.now + 60,
            RequestHeaders(reply_partition=to),
            topic,
            WireError("expired", "", request_id="r"),
            size=0,
        )
        self.turns.deliver([item.ticket])
        return Outcome(item, RequestError("expired", "late"), "queue")

    def publish(self, *outcomes: Outcome) -> None:
        self.publisher.publish(outcomes)

    def rest(self) -> None:
        """Let the pause after an abort pass."""
        self.now += 5
        self.publish()

    def replied(self) -> list[int]:
        """Offsets whose reply was committed, in order."""
        return [each.item.ticket.offset for sends, _ in self.producer.committed for each in sends]


@pytest.fixture
def made() -> Made:
    return Made()


def failure(kind: FailureKind, code: str = "X", *, local: bool = False) -> Failure:
    return Failure(kind, code, "why", local)


def test_answers_and_offsets_are_one_transaction(made: Made) -> None:
    made.publish(made.deliver(0), made.deliver(1), made.deliver(7, Q))
    assert made.producer.calls == ["begin", "offsets", "commit"]
    ((_, offsets),) = made.producer.committed
    assert offsets == {P: 2, Q: 8}
    assert made.replied() == made.confirmed == [0, 1, 7]
    assert made.events.count["committed"] == 1


def test_nothing_is_begun_without_an_answer_whose_turn_it_is(made: Made) -> None:
    made.deliver(0)
    made.publish(made.deliver(1))
    assert made.producer.calls == []


def test_what_an_answer_waits_for_its_turn_is_part_of_its_reply_in_the_trace(made: Made) -> None:
    older, newer = made.deliver(0), made.deliver(1)
    made.publish(newer)
    made.now += 10
    made.publish(older)
    assert made.tracer.begun == {1: 100.0, 0: 110.0}
    assert made.tracer.ended == {1: 110.0, 0: 110.0}


def test_an_aborted_transaction_is_repeated_with_the_same_replies_after_a_pause(made: Made) -> None:
    made.producer.errors["offsets"] = [TransactionError("ILLEGAL_GENERATION", "moved on")]
    made.publish(made.deliver(0))
    assert made.producer.calls == ["begin", "offsets", "abort"]
    assert made.confirmed == []
    made.publish(made.deliver(1))
    assert made.producer.calls.count("begin") == 1, "it rests"
    made.rest()
    assert made.replied() == made.confirmed == [0, 1]
    assert made.events.count["replied:expired"] == 2, "written once each"
    assert made.events.count["commit_failed"] == 1


def test_pauses_grow_and_are_over_after_a_commit(made: Made) -> None:
    made.producer.errors["commit"] = [TransactionError("X", "") for _ in range(3)]
    made.publish(made.deliver(0))
    pauses = [made.publisher.patience]
    for _ in range(2):
        made.rest()
        pauses.append(made.publisher.patience)
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[2]
    made.rest()
    assert made.confirmed == [0]
    assert made.publisher.patience == pytest.approx(0.1)


def test_aborts_without_end_end_the_process(made: Made) -> None:
    made.producer.errors["commit"] = [TransactionError("X", "") for _ in range(99)]
    made.publish(made.deliver(0))
    for _ in range(11):
        made.rest()
    with pytest.raises(StreamError, match="no transaction can be committed: X"):
        made.rest()
    assert made.confirmed == []


def test_a_producer_that_is_out_ends_the_process_and_confirms_nothing(made: Made) -> None:
    made.producer.errors["commit"] = [StreamError("fenced")]
    with pytest.raises(StreamError, match="fenced"):
        made.publish(made.deliver(0))
    assert made.confirmed == []


def test_a_reply_without_a_topic_becomes_a_dead_letter_at_once_and_its_neighbours_are_sent_again(made: Made) -> None:
    made.producer.failures = {"elsewhere": failure("topic_unknown")}
    made.publish(made.deliver(0), made.deliver(1, topic="elsewhere"), made.deliver(2))
    assert made.producer.calls == ["begin", "offsets", "abort", "begin", "offsets", "commit"]
    ((sends, offsets),) = made.producer.committed
    assert [type(each) for each in sends] == [ReplySent, DeadLetterSent, ReplySent]
    assert offsets == {P: 3}
    assert made.events.count["dead:reply_topic_unknown"] == 1


def test_a_reply_to_a_topic_that_the_brokers_do_not_know_never_enters_a_transaction(made: Made) -> None:
    made.producer.absent = {"nowhere"}
    made.publish(made.deliver(0), made.deliver(1, topic="nowhere"), made.deliver(2))
    assert made.producer.calls == ["begin", "offsets", "commit"]
    ((sends, offsets),) = made.producer.committed
    assert [type(each) for each in sends] == [ReplySent, DeadLetterSent, ReplySent]
    assert offsets == {P: 3}
    assert made.events.count["dead:reply_topic_unknown"] == 1


def test_a_reply_to_a_partition_that_its_topic_has_not_never_enters_a_transaction(made: Made) -> None:
    made.publish(made.deliver(0, to=2), made.deliver(1, to=3), made.deliver(2))
    assert made.producer.calls == ["begin", "offsets", "commit"]
    ((sends, offsets),) = made.producer.committed
    assert [type(each) for each in sends] == [ReplySent, DeadLetterSent, ReplySent]
    assert offsets == {P: 3}
    assert made.events.count["dead:reply_partition_unknown"] == 1


def test_a_topic_that_goes_in_a_transaction_that_fails_with_all_its_records_is_found_before_the_next(
    made: Made,
) -> None:
    made.producer.failures = {topic: failure("other", "_PURGE_QUEUE") for topic in ("recall.replies", "deleted")}
    made.publish(made.deliver(0), made.deliver(1, topic="deleted"))
    assert made.confirmed == []
    made.producer.absent = {"deleted"}
    made.rest()
    ((sends, offsets),) = made.producer.committed
    assert [type(each) for each in sends] == [ReplySent, DeadLetterSent]
    assert offsets == {P: 2}


def test_suspects_of_a_refused_batch_are_sent_alone(made: Made) -> None:
    made.producer.failures = {"recall.replies": failure("too_large")}
    made.publish(made.deliver(0), made.deliver(1))
    ((sends, _),) = made.producer.committed
    assert [(each.alone, isinstance(each, ReplySent) and each.shrunk) for each in sends] == [(True, False)] * 2


def test_records_that_fell_with_their_transaction_are_no_culprits(made: Made) -> None:
    made.producer.failures = {"recall.replies": failure("other", "_PURGE_QUEUE")}
    made.publish(made.deliver(0))
    assert made.confirmed == []
    made.rest()
    assert made.replied() == [0]


def test_a_record_that_can_never_be_delivered_ends_the_process(made: Made) -> None:
    made.producer.failures = {"recall.replies": failure("other", "CORRUPT")}
    with pytest.raises(StreamError, match="undeliverable: CORRUPT"):
        made.publish(made.deliver(0))


def test_a_partition_lost_before_the_commit_aborts_and_only_the_others_are_answered(made: Made) -> None:
    made.producer.on_poll = lambda: made.turns.withdraw([P], 0.0)
    made.publish(made.deliver(0), made.deliver(5, Q))
    assert "commit" not in made.producer.calls
    assert made.confirmed == [0], "released: it is answered by the next owner"
    made.rest()
    assert made.replied() == [5]
    assert made.producer.committed[0][1] == {Q: 6}


def test_an_answer_that_comes_after_its_partition_left_is_dropped_and_released(made: Made) -> None:
    late = made.deliver(0)
    made.turns.withdraw([P], 0.0)
    made.publish(late)
    assert made.producer.calls == []
    assert made.confirmed == [0]


def test_a_bad_record_is_a_reply_and_a_dead_letter_in_one_transaction(made: Made) -> None:
    outcome = made.deliver(0)
    made.publish(Outcome(outcome.item, RequestError("bad_request", "no"), "decode"))
    ((sends, offsets),) = made.producer.committed
    assert {type(each) for each in sends} == {ReplySent, DeadLetterSent}
    assert offsets == {P: 1}


def test_more_than_fits_goes_in_several_transactions(made: Made) -> None:
    outcomes: Sequence[Outcome] = [made.deliver(offset) for offset in range(600)]
    made.publish(*outcomes)
    assert [len(sends) for sends, _ in made.producer.committed] == [256, 256, 88]
    assert made.confirmed == list(range(600))


def test_what_did_not_get_through_is_tried_again_in_smaller_transactions(made: Made) -> None:
    made.producer.errors["commit"] = [TransactionError("_MSG_TIMED_OUT", "slow") for _ in range(2)]
    made.publish(*(made.deliver(offset) for offset in range(400)))
    made.rest()
    made.rest()
    assert [len(sends) for sends, _ in made.producer.committed] == [64, 128, 208]
    assert made.confirmed == list(range(400))


def test_a_reply_topic_that_takes_nothing_is_found_although_only_the_transaction_says_so(made: Made) -> None:
    made.producer.forbidden = {"forbidden"}
    made.publish(*(made.deliver(offset, topic="forbidden" if offset == 5 else "recall.replies") for offset in range(9)))
    for _ in range(12):
        made.rest()
    assert made.confirmed == list(range(9))
    sends = [sent for each, _ in made.producer.committed for sent in each]
    assert [type(each) for each in sends] == [ReplySent] * 5 + [DeadLetterSent] + [ReplySent] * 3
    assert made.events.count["dead:reply_topic_denied"] == 1

    aborts = made.producer.calls.count("abort")
    made.publish(made.deliver(9), made.deliver(10, topic="forbidden"))
    assert (made.confirmed[9:], made.producer.calls.count("abort")) == ([9, 10], aborts), "it is known by now"
    made.producer.forbidden.clear()
    made.now += 61
    made.publish(made.deliver(11, topic="forbidden"))
    assert isinstance(made.producer.committed[-1][0][0], ReplySent), "it may write there now"


def test_a_dead_letter_topic_that_takes_nothing_ends_the_process(made: Made) -> None:
    made.producer.forbidden = {"recall.dead-letters"}
    outcome = made.deliver(0)
    with pytest.raises(StreamError, match="a dead letter is undeliverable"):
        made.publish(Outcome(outcome.item, RequestError("bad_request", "no"), "decode"))
