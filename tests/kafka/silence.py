"""How long each partition gave no answer while requests kept coming."""

from collections.abc import Iterable
from itertools import pairwise

from tests.kafka.checker import Answer


def longest_silences(answers: Iterable[Answer]) -> dict[int, float]:
    """The longest time in seconds between an answer to a partition's requests and the next one, per partition."""
    times: dict[int, list[int]] = {}
    for answer in answers:
        times.setdefault(answer.request[0], []).append(answer.at_ms)
    return {
        partition: max((later - earlier) / 1000 for earlier, later in pairwise(stamps))
        for partition, stamps in sorted((partition, sorted(found)) for partition, found in times.items())
        if len(stamps) > 1
    }
