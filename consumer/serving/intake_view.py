"""What other threads may know of the intake."""

import time
from dataclasses import dataclass

from consumer.serving.offsets import OffsetTracker
from consumer.serving.snapshot import PartitionSnapshot
from consumer.stream.consumer import RequestConsumer
from consumer.stream.group import UNDECIDED, GroupView
from consumer.stream.partition import Partition


@dataclass(frozen=True, slots=True)
class IntakeView:
    """Replaced as a whole."""

    partitions: tuple[PartitionSnapshot, ...] = ()
    in_flight: int = 0
    in_flight_bytes: int = 0
    paused: bool = False
    joined: bool = False
    troubles: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    group: GroupView = UNDECIDED


def partition_view(partition: Partition, tracker: OffsetTracker, consumer: RequestConsumer) -> PartitionSnapshot:
    """Of one that is owned; on the intake thread."""
    progress = tracker.progress(partition)
    high = consumer.end_of(partition, progress.position)
    done = progress.watermark
    if done is not None and not progress.unfinished:
        done = consumer.passed(partition, done)
    lag = None if high is None or done is None else max(0, high - done)
    return PartitionSnapshot(
        partition.topic,
        partition.number,
        progress.epoch,
        progress.position,
        progress.committed,
        high,
        lag,
        0.0 if progress.oldest is None else max(0.0, time.time() - progress.oldest),
        progress.unfinished,
    )
