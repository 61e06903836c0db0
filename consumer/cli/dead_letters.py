"""``recallstream dead-letters``: look at records that could not be served, and send them back."""

import heapq
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import CliPositionalArg, CliSubCommand, SettingsError, get_subcommand

from consumer.dead_letters.selection import Selection, parse_places, parse_time
from consumer.service.settings import LayeredSettings
from consumer.stream.settings import KafkaSettings
from consumer.wire.settings import WireLimits
from engine.errors import RecallstreamError

if TYPE_CHECKING:
    from consumer.stream.producer import Failure
    from consumer.stream.topic_reader import TopicReader
    from consumer.wire.stored_letter import StoredLetter

FEW = 5
"""As many are replayed without a question."""
_STOP_S = 5.0


class _Command(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap: str | None = Field(None, min_length=1, description="brokers; in the place of kafka.bootstrap-servers")

    @contextmanager
    def _topic(self, kafka: KafkaSettings) -> Iterator["TopicReader"]:
        from rich.console import Console

        from consumer.stream.topic_reader import TopicReader

        console = Console(stderr=True)
        with closing(TopicReader(kafka, kafka.dead_letter_topic)) as topic:
            if console.is_terminal:
                total = sum(end - first for first, end in topic.spans.values())
                with console.status(f"{kafka.dead_letter_topic}: {total:,} offsets"):
                    yield topic
            else:
                yield topic

    def settings(self, kafka: KafkaSettings) -> KafkaSettings:
        return kafka.model_copy(update={"bootstrap_servers": self.bootstrap} if self.bootstrap else {})


class _Selecting(_Command):
    at: str | None = Field(None, description="places in the dead-letter topic: 0:17,1:20-40; partition 0 by default")
    error_class: str | None = Field(
        None, validation_alias=AliasChoices("class"), description="only letters of this class: bad_request, internal"
    )
    stage: str | None = Field(None, description="only what failed at this stage: decode, validate, recall, reply")
    topic: str | None = Field(None, description="only what came from this topic")
    since: str | None = Field(None, description="only what died since: 15m, 2h, 7d ago or 2026-01-31T08:00")
    until: str | None = Field(None, description="only what died before: the same forms")

    @model_validator(mode="after")
    def _readable(self) -> Self:
        _ = self.selection
        return self

    @cached_property
    def selection(self) -> Selection:
        now_ms = time.time() * 1000
        return Selection(
            places=() if self.at is None else parse_places(self.at),
            error_class=self.error_class,
            stage=self.stage,
            topic=self.topic,
            since_ms=None if self.since is None else parse_time(self.since, now_ms),
            until_ms=None if self.until is None else parse_time(self.until, now_ms),
        )

    def _selected(self, topic: "TopicReader") -> Iterator["StoredLetter"]:
        from consumer.wire.stored_letter import StoredLetter

        for record in topic.records(self.selection.within()):
            letter = StoredLetter.of(record)
            if self.selection.matches(letter):
                yield letter


class List(_Selecting):
    """Show dead letters in a table, the newest last."""

    limit: int = Field(50, ge=1, description="only so many, the newest")

    def run(self, kafka: KafkaSettings) -> None:
        from consumer.cli.tables import print_table
        from consumer.dead_letters.shown import letter_row

        count = itertools.count()
        with self._topic(kafka) as topic:
            letters = (letter for letter, _ in zip(self._selected(topic), count, strict=False))
            newest = heapq.nlargest(self.limit, letters, key=_age)
        total = next(count)
        if newest:
            rows = [letter_row(letter) for letter in reversed(newest)]
            print_table(f"{len(newest):,} of {total:,} dead letters", rows)
        else:
            _say(f"{kafka.dead_letter_topic} has none" + ("" if self.selection == Selection() else " of this kind"))


class Show(_Command):
    """Show one dead letter: why, its headers, its fields as far as they can be read, its bytes."""

    at: CliPositionalArg[str] = Field(description="its place as `dead-letters list` shows it: PARTITION:OFFSET")

    def run(self, kafka: KafkaSettings, limits: WireLimits) -> None:
        from rich.console import Console

        from consumer.dead_letters.shown import letter_page
        from consumer.wire.stored_letter import StoredLetter

        selection = Selection(parse_places(self.at))
        with self._topic(kafka) as topic:
            for record in topic.records(selection.within()):
                Console().print(letter_page(StoredLetter.of(record), limits))
                return
        raise RecallstreamError(f"{kafka.dead_letter_topic} has no record at {self.at}")


class Replay(_Selecting):
    """Send dead letters back to the topic that they came from, as they were, confirmed one by one.

    They also stay in the dead-letter topic. A replayed record counts its attempts in dlq.attempt.
    """

    all: bool = Field(False, description="everything in the topic; needed where nothing else selects")
    dry_run: bool = Field(False, description="show what would be sent and send nothing")
    yes: bool = Field(False, description=f"do not ask, however many (more than {FEW}) they are")

    @model_validator(mode="after")
    def _something_is_selected(self) -> Self:
        if not self.all and self.selection == Selection():
            raise ValueError("say which: --at, --class, --stage, --topic, --since, --until, or --all")
        return self

    def run(self, kafka: KafkaSettings) -> None:
        from rich.console import Console

        from consumer.dead_letters.shown import counts_table

        with self._topic(kafka) as topic:
            counts, kept = self._survey(topic, kafka)
            total = sum(counts.values())
            if total:
                Console().print(counts_table(counts))
            for why, count in kept.items():
                _say(f"{count:,} cannot be sent: {why}")
            if not total:
                raise RecallstreamError("there is nothing to send")
            if self.dry_run:
                _say(f"{total:,} would be sent")
                return
            self._ask(total)
            self._send(topic, kafka)

    def _survey(self, topic: "TopicReader", kafka: KafkaSettings) -> tuple[Counter[tuple[str, str, str]], Counter[str]]:
        counts, kept = Counter[tuple[str, str, str]](), Counter[str]()
        for letter in self._selected(topic):
            obstacle = self._obstacle(letter, kafka)
            if obstacle is None and letter.origin is not None:
                counts[letter.error_class, letter.stage, letter.origin.topic] += 1
            else:
                kept[obstacle or ""] += 1
        return counts, kept

    def _obstacle(self, letter: "StoredLetter", kafka: KafkaSettings) -> str | None:
        """Whoever can write into the dead-letter topic must not be able to write anywhere else by a replay."""
        if letter.origin is not None and letter.origin.topic not in (*kafka.request_topics, self.topic):
            return f"{letter.origin.topic} is no request topic: name it with --topic to send there"
        return letter.obstacle

    def _ask(self, total: int) -> None:
        from rich.console import Console
        from rich.prompt import Confirm

        if total <= FEW or self.yes:
            return
        if not sys.stdin.isatty():
            raise RecallstreamError(f"{total:,} would be sent: confirm with --yes")
        if not Confirm.ask(f"send {total:,} records?", console=Console(stderr=True), default=False):
            raise RecallstreamError("nothing was sent")

    def _send(self, topic: "TopicReader", kafka: KafkaSettings) -> None:
        from consumer.dead_letters import replay
        from consumer.dead_letters.shown import origin_of

        ends = Counter[str]()

        def report(letter: "StoredLetter", failure: "Failure | None") -> None:
            ends["sent" if failure is None else "failed"] += 1
            what = "attempt " + str(letter.attempt + 1) if failure is None else f"FAILED: {failure.message}"
            _say(f"{letter.at} -> {origin_of(letter).partition('@')[0]} {what}")

        letters = (
            (letter, letter.origin)
            for letter in self._selected(topic)
            if letter.origin is not None and self._obstacle(letter, kafka) is None
        )
        replaying = replay.Replay(kafka, report)
        try:
            replaying.send(letters)
        finally:
            replaying.close(_STOP_S)
            _say(f"{ends['sent']:,} sent and confirmed")
        if ends["failed"]:
            raise RecallstreamError(f"{ends['failed']:,} were not confirmed")


class DeadLetters(LayeredSettings):
    """List, show and replay records that could not be served.

    Brokers and topics come from flags, RECALLSTREAM_KAFKA__FIELD, then the TOML file.
    """

    kafka: KafkaSettings = Field(default_factory=KafkaSettings, description="brokers and topics")
    wire: WireLimits = Field(default_factory=WireLimits, description="what a record may hold")

    list: CliSubCommand[List] = Field(description="show them in a table")
    show: CliSubCommand[Show] = Field(description="show one with headers and value")
    replay: CliSubCommand[Replay] = Field(description="send them back to where they came from")

    def cli_cmd(self) -> None:
        import logging

        logging.getLogger("consumer.stream").addHandler(logging.NullHandler())  # trouble is said once, by the error
        command = get_subcommand(self, is_required=False)
        if not isinstance(command, List | Show | Replay):
            raise SettingsError("a sub-command is missing: list, show or replay")
        kafka = command.settings(self.kafka)
        if isinstance(command, Show):
            command.run(kafka, self.wire)
        else:
            command.run(kafka)


def _age(letter: "StoredLetter") -> tuple[int, int, int]:
    record = letter.record
    return record.timestamp_ms, record.partition, record.offset


def _say(line: str) -> None:
    from rich.console import Console

    Console().print(line, markup=False, highlight=False, soft_wrap=True)
