"""The name of a partition, for code that does not know the Kafka client."""

from functools import lru_cache
from typing import NamedTuple


class Partition(NamedTuple):
    """One of a topic's; ``number`` counts from 0."""

    topic: str
    number: int


@lru_cache(maxsize=4_096)
def partition_of(topic: str, number: int) -> Partition:
    """The same object for the same place: one is asked for with every record."""
    return Partition(topic, number)
