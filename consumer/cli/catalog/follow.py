"""``catalog follow``: item changes from a Kafka topic become versions."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from catalog_sync.settings import CatalogSettings
from consumer.cli.catalog.delta import REBASE_AFTER
from consumer.cli.catalog.models import only_model
from consumer.cli.catalog.on_redis import OnRedis
from consumer.cli.catalog.shown import say
from consumer.stream.settings import KafkaSettings
from engine.errors import CatalogError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from threading import Event

    from catalog_sync.change_feed import ChangeFeed, ChangeRecord, FeedResult
    from consumer.stream.item_changes import ItemChanges
    from consumer.wire.dead_letter import SourceRecord

_PASSING = ("conflict", "verify", "quarantined")
"""Another publisher was faster, again and again; what was uploaded was pruned at the same time; what is current was
found bad, and the pointer has not gone back yet.
"""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0


class Follow(OnRedis):
    """Publish the item changes of a Kafka topic as deltas of the current version; runs until it is stopped.

    It begins where the current version says that it stands in the topic. Where the pointer goes back behind a version
    that was found bad, it reads again what came since, and leaves out what made that version.
    """

    topic: str = Field("recall.items", min_length=1, description="topic of item changes")
    group_id: str = Field("recallstream-items", min_length=1, description="consumer group whose offsets are used")
    bootstrap: str | None = Field(None, min_length=1, description="brokers; in the place of kafka.bootstrap-servers")
    model: str | None = Field(None, description="model id; may be left out if only one model has a current version")
    seconds: float = Field(0.5, gt=0, le=60, description="changes of so long make one version")
    limit: int = Field(10_000, ge=1, le=1_000_000, description="most changes of one version")
    key: Path | None = Field(None, description="PEM file of an Ed25519 private key to sign the manifests with")
    rebase_after: int = Field(
        REBASE_AFTER, ge=0, le=200, description="deltas after which the version is written out in full; 0: never"
    )

    def run(self, settings: CatalogSettings, kafka: KafkaSettings) -> None:
        import signal
        from threading import Event

        from catalog_sync.change_feed import ChangeFeed
        from catalog_sync.deltas import DeltaPublisher
        from catalog_sync.rebase_helper import RebaseHelper, signer
        from consumer.stream.item_changes import ItemChanges

        stop = Event()
        before = {each: signal.signal(each, lambda *_: stop.set()) for each in (signal.SIGTERM, signal.SIGINT)}
        given = {"group_id": self.group_id} | ({"bootstrap_servers": self.bootstrap} if self.bootstrap else {})
        try:
            with (
                self.publisher(settings) as publisher,
                RebaseHelper(self.merged(settings), self.key, say) as helper,
            ):
                deltas = DeltaPublisher(publisher, signer(self.key))
                feed = ChangeFeed(deltas, self.model or only_model(publisher), self.topic)

                def begin(committed: "Mapping[int, int]") -> "Mapping[int, int]":
                    return known(lambda: feed.begin(committed))

                with closing(ItemChanges(kafka.model_copy(update=given), self.topic, begin)) as changes:
                    say(f"following {self.topic}")
                    while not stop.is_set():
                        records = changes.read(self.seconds, self.limit, stop)
                        if not records:
                            go_back(changes, known(feed.back))
                        elif (result := published(feed, list(map(_change, records)), stop)) is None:
                            break
                        elif result.back:
                            go_back(changes, result.back)
                        else:
                            changes.commit()
                            _tell(result, len(records))
                            if result.version is not None and 0 < self.rebase_after <= result.chain:
                                helper.start(result.version)
                        helper.look()
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def known(ask: "Callable[[], Mapping[int, int]]") -> "Mapping[int, int]":
    """Places in the topic that the catalog tells; none while it does not answer, for a publish asks again."""
    import redis

    try:
        return ask()
    except (redis.RedisError, CatalogError):
        return {}


def go_back(changes: "ItemChanges", places: "Mapping[int, int]") -> None:
    if places:
        say("the pointer went back: reading again from " + ", ".join(f"{p} @ {o}" for p, o in sorted(places.items())))
        changes.go_back(places)


def published(feed: "ChangeFeed", changes: "Sequence[ChangeRecord]", stop: "Event") -> "FeedResult | None":
    """Tries until Redis takes it; none if it is to stop before that."""
    import random

    import redis

    from catalog_sync.backoff import Backoff

    backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, 0.2, random.random)
    while True:
        try:
            return feed.publish(changes)
        except redis.RedisError as error:
            why = f"Redis: {error}"
        except CatalogError as error:
            if error.reason not in _PASSING:
                raise
            why = error.message
        pause = backoff.pause()
        say(f"not published, tried again in {pause:.1f} s: {why}")
        if stop.wait(pause):
            return None


def _change(record: "SourceRecord") -> "ChangeRecord":
    from catalog_sync.change_feed import ChangeRecord

    return ChangeRecord(record.partition, record.offset, record.key, record.value)


def _tell(result: "FeedResult", records: int) -> None:
    for line in result.refused:
        say(f"refused: {line}")
    if result.left_out:
        say(f"left out: {result.left_out:,} records that made a version found bad")
    if result.version is not None:
        say(f"version {result.version}: {result.upserts:,} items added or replaced, {result.withdrawn:,} withdrawn, "
            f"from {records:,} records")  # fmt: skip
