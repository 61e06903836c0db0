"""The consumer of requests. One thread makes every call; group events come to its listener from inside ``poll``."""

import logging
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from consumer.stream.ends import PartitionEnds
from consumer.stream.errors import (
    HEALS_BY_ITSELF,
    TOPIC_MISSING,
    StreamError,
    is_fatal,
    name_of,
    reason_of,
)
from consumer.stream.group import GroupSetup, GroupView
from consumer.stream.health import ClientHealth
from consumer.stream.leaving import leave_group
from consumer.stream.listener import ConsumerListener
from consumer.stream.offset_commits import OffsetCommits
from consumer.stream.partition import Partition
from consumer.stream.records import records_of
from consumer.stream.resets import OffsetResets
from consumer.stream.settings import CRITICAL_ONLY, GroupProtocol, KafkaSettings
from consumer.stream.starts import look_up
from consumer.stream.topics import NeededTopics
from consumer.stream.unreadable import UnreadableRecords
from consumer.wire.dead_letter import SourceRecord

_PROBE_S = 2.0

log = logging.getLogger(__name__)


class RequestConsumer:
    """Reads the request topic as a member of the group. Raises StreamError where the process must end."""

    def __init__(self, settings: KafkaSettings, listener: ConsumerListener) -> None:
        self._settings = settings
        self._listener = listener
        self._owned: set[Partition] = set()
        self._resets = OffsetResets(settings.offset_reset)
        self._unreadable = UnreadableRecords()
        self._paused = False
        self._closed = False
        self._fatal: KafkaError | None = None
        self._joined = False
        self._health = ClientHealth(settings, time.monotonic)
        self._commits = OffsetCommits(listener, self._health.alive)
        try:
            admin = AdminClient({**settings.connection(), "log_level": CRITICAL_ONLY})
            self._ends = PartitionEnds(admin)
            self._topics = NeededTopics(admin, settings.needed_topics)
            self._group = GroupSetup(settings, admin)
            self._protocol = self._group.view.protocol
            self._consumer = self._connect(self._protocol)
        except KafkaException as error:
            raise StreamError(f"kafka: {reason_of(error)}") from error

    def _connect(self, protocol: GroupProtocol | None) -> Consumer:
        """A client that asks to join the group, unless the protocol is still open: then it only tells of brokers."""
        consumer = Consumer(
            {
                **self._settings.consumer(protocol or "classic"),
                "enable.partition.eof": True,  # says where reading stands behind what is no record
                "error_cb": self._on_error,
                "stats_cb": self._health.statistics,
                "on_commit": self._commits.answered,
            },
            logger=log,
        )
        if protocol is not None:
            self._join(consumer)
        return consumer

    def _join(self, consumer: Consumer) -> None:
        consumer.subscribe(
            list(self._settings.request_topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def poll(self, timeout: float, limit: int) -> list[SourceRecord]:
        """Wait up to ``timeout`` seconds for a record, take the others that are there (``limit`` in all)."""
        # consume() is never given the time: it would wait for a full batch.
        try:
            first = self._consumer.poll(timeout)
            messages = [] if first is None else [first]
            if messages and limit > 1:
                messages += self._consumer.consume(limit - 1, 0)
            sound = [message for message in messages if message.error() is None]
            records = records_of(sound)
            if len(sound) < len(messages):
                self._on_errors(messages)
            records += self._unreadable.skip(self._consumer, paused=self._paused)
            self._reset_offsets()
            self._follow_group()
        except KafkaException as failure:
            raise StreamError(f"the consumer failed: {reason_of(failure)}") from failure
        if records:
            self._health.alive()
        self._ends.refresh(self._owned, time.monotonic())
        self._topics.refresh(time.monotonic())
        self._check_health()
        return records

    def pause(self) -> None:
        """Read nothing, also from partitions that are assigned later, until ``resume``."""
        self._paused = True
        self._consumer.pause([TopicPartition(*partition) for partition in self._owned])

    def resume(self) -> None:
        self._paused = False
        self._consumer.resume([TopicPartition(*partition) for partition in self._owned])

    def store(self, partition: Partition, offset: int) -> bool:
        """Whether ``offset`` may be committed. False: the partition is not ours, or not yet."""
        return self._commits.store(self._consumer, partition, offset)

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit what is still ours, without waiting. The listener hears the end."""
        self._commits.commit(self._consumer, offsets)

    def membership(self) -> bytes | None:
        """What the group knows this process as, for offsets in a transaction; None while it is no member.

        Offsets with it are refused once the group has moved on from it.
        """
        try:
            known = self._consumer.consumer_group_metadata()
            # Of a consumer that is no member it names none, and a classic group takes offsets of nobody unchecked.
            return known if self._consumer.memberid() else None
        except RuntimeError:  # it is leaving, or has left
            return None

    @property
    def group(self) -> GroupView:
        """How this member speaks with its group."""
        return self._group.view

    @property
    def troubles(self) -> tuple[str, ...]:
        """What keeps this member from its work, as far as the client says."""
        return (*self._health.troubles, *self._topics.troubles)

    @property
    def missing(self) -> tuple[str, ...]:
        """The topics that it needs and that do not exist, a sentence each."""
        return self._topics.troubles

    @property
    def away(self) -> bool:
        """No broker can be reached, or none lets us in."""
        return self._health.away

    @property
    def committing(self) -> bool:
        """A commit is on its way. The client may send it again, so a later one can be overtaken by it."""
        return self._commits.unanswered > 0

    def passed(self, partition: Partition, position: int) -> int:
        """Where reading stands, at ``position`` or beyond: what lies between can never be read."""
        return self._ends.passed(partition, position) or position

    def end_of(self, partition: Partition, position: int | None) -> int | None:
        """End of the partition as far as it is known; grows also while nothing is fetched.

        Reading stands at ``position``; where that was the end, records of an open transaction are not counted.
        """
        asked = self._ends.end(partition)
        fetched = None if position is None else self._ends.passed(partition, position)
        if fetched is None:
            try:
                watermarks = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
            except KafkaException:
                watermarks = None
            fetched = -1 if watermarks is None else watermarks[1]
        known = max(fetched, -1 if asked is None else asked)
        return None if known < 0 else known

    def close(self, budget: float) -> bool:
        """Leave the group, once. False: it takes longer than ``budget`` seconds and goes on by itself."""
        if self._closed:
            return True
        self._closed = True
        return leave_group(self._consumer, budget)

    def _follow_group(self) -> None:
        """Join once it is known how."""
        self._group.refresh(away=self._health.away)
        protocol = self._group.view.protocol
        if protocol == self._protocol:
            return
        if protocol == "classic" and self._protocol is None:
            self._join(self._consumer)
        else:
            self._consumer.close()
            self._consumer = self._connect(protocol)
        self._protocol = protocol

    def _on_errors(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if error := message.error():
                self._on_message_error(error, message.topic(), message.partition(), message.offset())

    def _on_message_error(self, error: KafkaError, topic: str | None, number: int | None, offset: int | None) -> None:
        if is_fatal(error):
            if not self._joined and self._group.fall_back(error.str()):
                return
            raise StreamError(f"the consumer is out for good: {error.str()}")
        if error.code() == KafkaError._AUTO_OFFSET_RESET and topic is not None and number is not None:
            self._resets.note(Partition(topic, number), offset)
            return
        if error.code() == KafkaError._PARTITION_EOF:
            if topic is not None and number is not None and offset is not None:
                self._ends.reached(Partition(topic, number), offset)
            return
        if self._unreadable.note(error, topic, number, offset):
            return
        if error.code() not in HEALS_BY_ITSELF and not error.retriable():
            raise StreamError(f"the consumer failed: {name_of(error)}: {error.str()}")
        log.warning("consumer: %s: %s", name_of(error), error.str())
        if error.code() in TOPIC_MISSING and topic is not None:
            self._topics.lack(topic)
        self._listener.client_error(name_of(error))

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._joined = True
        self._health.alive()
        self._topics.found({each.topic for each in partitions})
        if self._closed:  # it leaves: others read them, and the client raises no proper error for an assignment now
            return
        if not partitions:  # cooperative members hear of every round, also when nothing moved
            self._listener.assigned({})
            return
        starts, skipped = look_up(consumer, partitions, self._settings.offset_reset)
        consumer.incremental_assign(starts)
        if self._paused:
            consumer.pause(starts)
        self._owned |= {Partition(each.topic, each.partition) for each in starts}
        self._unreadable.begin({Partition(each.topic, each.partition): each.offset for each in starts})
        self._listener.assigned(
            {Partition(each.topic, each.partition): each.offset if each.offset >= 0 else None for each in starts}
        )
        for partition, count in skipped.items():
            self._listener.offset_reset(partition, count)

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = self._forget(partitions)
        self._listener.revoked(gone)

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._listener.lost(self._forget(partitions))

    def _forget(self, partitions: list[TopicPartition]) -> list[Partition]:
        gone = [Partition(each.topic, each.partition) for each in partitions]
        self._owned.difference_update(gone)
        self._resets.forget(gone)
        self._unreadable.forget(gone)
        for partition in gone:
            self._ends.forget(partition)
        return gone

    def _reset_offsets(self) -> None:
        for partition, start, skipped in self._resets.restart(self._consumer, paused=self._paused):
            self._ends.forget(partition)
            self._unreadable.begin({partition: start})
            self._listener.assigned({partition: start})
            self._listener.offset_reset(partition, skipped)

    def _on_error(self, error: KafkaError) -> None:
        self._listener.client_error(name_of(error))
        if is_fatal(error):
            self._fatal = error
        self._health.error(error.code())

    def _check_health(self) -> None:
        if fatal := self._fatal or self._commits.fatal:
            raise StreamError(f"the consumer is out for good: {name_of(fatal)}: {fatal.str()}")
        trouble = self._health.over_limit
        if trouble is None:
            return
        try:  # ask once before giving up
            self._consumer.list_topics(self._settings.request_topic, timeout=_PROBE_S)
        except KafkaException as error:
            raise StreamError(f"{trouble}: {reason_of(error)}") from error
        self._health.alive()
