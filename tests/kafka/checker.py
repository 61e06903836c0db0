"""Judges a run by what the topics hold and by nothing else: answers, dead letters, and the log of commits."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import Message

from tests.kafka.commit_log import Commit, decreases, read_commits, read_to_end

Place = tuple[int, int]
"""Partition and offset of a request."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply or dead letter in its topic; ``at_ms`` is when the broker appended it."""

    request: Place
    at_ms: int
    kind: Literal["reply", "dead letter"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``early``: requests whose commit stands before their first answer, ``backwards``: commits that fell.

    ``repeated``: requests with several replies; ``doubled``: with more than one answer of any kind.
    """

    requests: int
    unanswered: tuple[Place, ...]
    early: tuple[Place, ...]
    backwards: tuple[Commit, ...]
    uncommitted: int
    repeated: int
    doubled: tuple[Place, ...]
    commits: int

    @property
    def kept(self) -> bool:
        """The contract was kept: at least one answer each, never committed before it, never backwards."""
        return not (self.unanswered or self.early or self.backwards)

    @property
    def exact(self) -> bool:
        """The same with exactly one answer each."""
        return self.kept and not self.doubled

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {self.commits} commits: {len(self.unanswered)} unanswered, "
            f"{len(self.early)} committed before their answer, {len(self.backwards)} commits backwards, "
            f"{self.uncommitted} not committed, {self.repeated} answered more than once, "
            f"{len(self.doubled)} with more than one reply or dead letter"
        )


def judge(
    ends: Mapping[int, int], answers: Iterable[Answer], commits: Sequence[Commit], *, atomic: bool = False
) -> Verdict:
    """``ends``: how many requests each partition holds, from offset 0; ``commits`` of the request topic in order.

    ``atomic``: a commit comes true with the answers of its transaction, whatever the stamps of the two say.
    """
    first: dict[Place, int] = {}
    times: dict[Place, int] = {}
    all_times: Counter[Place] = Counter()
    for answer in answers:
        all_times[answer.request] += 1
        first[answer.request] = min(answer.at_ms, first.get(answer.request, answer.at_ms))
        if answer.kind == "reply":
            times[answer.request] = times.get(answer.request, 0) + 1
    early: list[Place] = []
    done = dict.fromkeys(ends, 0)
    for commit in commits:
        for offset in range(done[commit.partition], commit.offset):
            place = commit.partition, offset
            if place not in first or (first[place] > commit.at_ms and not atomic):
                early.append(place)
        done[commit.partition] = max(done[commit.partition], commit.offset)
    requests = [(partition, offset) for partition, end in ends.items() for offset in range(end)]
    return Verdict(
        requests=len(requests),
        unanswered=tuple(place for place in requests if place not in first),
        early=tuple(early),
        backwards=tuple(decreases(commits)),
        uncommitted=sum(end - done[partition] for partition, end in ends.items()),
        repeated=sum(count > 1 for count in times.values()),
        doubled=tuple(place for place, count in all_times.items() if count > 1),
        commits=len(commits),
    )


def judge_topics(
    bootstrap_servers: str, group: str, requests: str, replies: str, dead_letters: str, *, atomic: bool = False
) -> Verdict:
    """Read the four topics to their ends, as read_committed gives them, and judge.

    The answers' topics must be stamped by the broker.
    """
    ends: dict[int, int] = {}
    for message in read_to_end(bootstrap_servers, requests):
        number, offset = _place(message)
        ends[number] = offset + 1
    commits = [commit for commit in read_commits(bootstrap_servers, group) if commit.topic == requests]
    return judge(ends, read_answers(bootstrap_servers, replies, dead_letters), commits, atomic=atomic)


def read_answers(bootstrap_servers: str, replies: str, dead_letters: str) -> list[Answer]:
    """Every reply and dead letter that is there now."""
    found = []
    for message in read_to_end(bootstrap_servers, replies):
        found.append(Answer(_named(message, "request"), message.timestamp()[1], "reply"))
    for message in read_to_end(bootstrap_servers, dead_letters):
        found.append(Answer(_named(message, "dlq.original", "."), message.timestamp()[1], "dead letter"))
    return found


def _named(message: Message, prefix: str, joint: str = "-") -> Place:
    headers = dict(message.headers() or ())
    return int(headers[f"{prefix}{joint}partition"] or b""), int(headers[f"{prefix}{joint}offset"] or b"")


def _place(message: Message) -> Place:
    number, offset = message.partition(), message.offset()
    assert number is not None
    assert offset is not None
    return number, offset
