"""What a member of the group hears."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from consumer.stream.partition import Partition


class ConsumerListener(Protocol):
    """What the group does with this member, and what became of its commits."""

    def assigned(self, starts: Mapping[Partition, int | None]) -> None:
        """These partitions are ours from now on; the offset is where reading starts, if that is known."""

    def revoked(self, partitions: Sequence[Partition]) -> None:
        """These go to another member when this returns; until then they can be committed."""

    def lost(self, partitions: Sequence[Partition]) -> None:
        """These are another member's already."""

    def committed(self, offsets: Mapping[Partition, int]) -> None:
        """The broker took a commit."""

    def commit_failed(self, code: str) -> None:
        """The broker refused a commit, or could not be reached."""

    def offset_reset(self, partition: Partition, skipped: int) -> None:
        """The start that ``assigned`` just named replaces a missing or lost one, ``skipped`` records further."""

    def client_error(self, code: str) -> None:
        """An error that the client recovers from."""
