"""Where partitions end, asked of the brokers: the consumer knows only of what it fetches."""

from collections.abc import Collection
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # re-exported without saying so

from consumer.stream.partition import Partition

ASK_EVERY_S = 5.0
_ANSWER_S: Final = 4.0


class PartitionEnds:
    """One thread calls it, nothing in it waits."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client
        self._asked: dict[Partition, Future[Any]] = {}
        self._ends: dict[Partition, int] = {}
        self._reached: dict[Partition, int] = {}
        self._due = 0.0

    def refresh(self, partitions: Collection[Partition], now: float) -> None:
        """Take in what was answered, and ask anew when it is time. A partition without an answer keeps its old end."""
        for partition, answer in list(self._asked.items()):
            if answer.done():
                del self._asked[partition]
                if answer.exception() is None and answer.result().offset >= 0:  # negative where no leader answered
                    self._ends[partition] = answer.result().offset
        if self._asked or now < self._due or not partitions:
            return
        self._due = now + ASK_EVERY_S
        self._ends = {partition: end for partition, end in self._ends.items() if partition in partitions}
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client's own
        wanted = {TopicPartition(*partition): latest for partition in partitions}
        answers = self._client.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_ANSWER_S
        )
        self._asked = {Partition(each.topic, each.partition): answer for each, answer in answers.items()}

    def end(self, partition: Partition) -> int | None:
        """The offset after the last record that is in no open transaction, as of the last answer."""
        return self._ends.get(partition)

    def reached(self, partition: Partition, offset: int) -> None:
        """Reading stood at its end: all records below ``offset`` were delivered, no other could be read."""
        self._reached[partition] = offset

    def passed(self, partition: Partition, position: int) -> int | None:
        """The end where reading stood last, unless it went on from there: to ``position``, of the next record.

        It may lie beyond: markers of transactions and what was aborted are no records.
        """
        reached = self._reached.get(partition)
        return reached if reached is not None and reached >= position else None

    def forget(self, partition: Partition) -> None:
        """It is read anew, or by another member."""
        self._reached.pop(partition, None)
