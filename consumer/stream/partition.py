"""The name of a partition, for code that does not know the Kafka client."""

from typing import NamedTuple


class Partition(NamedTuple):
    topic: str
    number: int
