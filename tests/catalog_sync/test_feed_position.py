"""Where a version stands in a topic of item changes, and what is read again when the pointer goes back."""

import json
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from catalog_sync.change_feed import ChangeFeed, ChangeRecord
from catalog_sync.deltas import DeltaPublisher
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.fleet_quarantine import FleetQuarantine
from catalog_sync.layout import Manifest
from engine.errors import CatalogError
from tests.catalog_sync.redis_support import MODEL, Fleet
from tests.catalog_sync.test_changes import base, current, row
from tests.catalog_sync.test_deltas import served
from tests.catalog_sync.test_watcher import until_active

TOPIC = "topic"


@pytest.fixture
def fleet(server: EmbeddedRedis) -> Iterator[Fleet]:
    running = Fleet(server)
    running.publisher.publish(*base())
    yield running
    running.close()


class Topic:
    """Rows that add items, and what reads them as a consumer would."""

    def __init__(self, fleet: Fleet, batch: int = 1) -> None:
        self.rows: dict[int, list[int]] = {}
        self.next: dict[int, int] = {}
        self._fleet, self._batch = fleet, batch
        self.start()

    def start(self) -> None:
        self.feed = ChangeFeed(DeltaPublisher(self._fleet.publisher), MODEL, TOPIC)
        self.next = self.feed.begin(dict.fromkeys(self.rows, 0))

    def add(self, item: int, partition: int = 0) -> None:
        self.rows.setdefault(partition, []).append(item)

    def read(self) -> list[ChangeRecord]:
        found = []
        for partition, items in self.rows.items():
            begin = self.next.get(partition, 0)
            for offset in range(begin, min(begin + self._batch, len(items))):
                found.append(ChangeRecord(partition, offset, None, json.dumps(row(items[offset])).encode()))
                self.next[partition] = offset + 1
        return found

    def follow(self) -> list[str]:
        """Until there is nothing new; the versions made."""
        versions = []
        while True:
            records = self.read()
            if records:
                result = self.feed.publish(records)
                self.next |= result.back
                versions += [result.version] if result.version is not None else []
            elif back := self.feed.back():
                self.next |= back
            else:
                return versions


def rolled_back(fleet: Fleet) -> Topic:
    """Items 3 and 4 are published, then the newest version is taken back by hand."""
    topic = Topic(fleet)
    topic.add(3)
    topic.add(4)
    topic.follow()
    fleet.publisher.rollback(MODEL)
    return topic


def items_of(fleet: Fleet) -> list[int]:
    with fleet.watcher():
        until_active(fleet, current(fleet))
        return sorted(served(fleet))


def manifest(fleet: Fleet) -> Manifest:
    return fleet.publisher.manifest(current(fleet).version)


def condemn(fleet: Fleet, version: str) -> None:
    FleetQuarantine(fleet.redis, fleet.keys, fleet.publisher).condemn(version, "empty", "bad", "test")


def test_a_version_says_up_to_where_it_holds_the_topic(fleet: Fleet) -> None:
    topic = Topic(fleet, batch=2)
    for item, partition in ((3, 0), (4, 0), (5, 1), (6, 0)):
        topic.add(item, partition)
    assert len(topic.follow()) == 2
    assert manifest(fleet).positions == {TOPIC: {0: 3, 1: 1}}
    deltas = DeltaPublisher(fleet.publisher)
    deltas.publish(deltas.head(MODEL), None, [np.array([3])])  # by hand, in between
    assert manifest(fleet).positions == {TOPIC: {0: 3, 1: 1}}


def test_what_came_after_a_version_found_bad_is_published_again_without_what_made_it_bad(fleet: Fleet) -> None:
    topic = Topic(fleet)
    for item in (3, 4, 5, 6):
        topic.add(item)
    versions = topic.follow()
    condemn(fleet, versions[1])
    assert current(fleet).version == versions[0]
    topic.follow()
    assert items_of(fleet) == [1, 2, 3, 5, 6]
    assert manifest(fleet).positions == {TOPIC: {0: 4}}
    assert topic.follow() == []


def test_changes_of_all_partitions_come_back(fleet: Fleet) -> None:
    topic = Topic(fleet)
    topic.add(3, 0)
    bad = topic.follow()[0]
    topic.add(4, 1)
    topic.add(5, 2)
    topic.follow()
    condemn(fleet, bad)
    topic.follow()
    topic.add(6, 1)
    topic.follow()
    assert [item for item in items_of(fleet) if item in (3, 6)] == [6]
    assert manifest(fleet).positions[TOPIC][1] == 2


def test_a_new_base_found_bad_takes_no_change_with_it(fleet: Fleet) -> None:
    topic = Topic(fleet)
    topic.add(3)
    topic.follow()
    bad, data = base(np.array([1, 50]))
    fleet.publisher.publish(bad, data)
    topic.add(4)
    topic.follow()
    assert items_of(fleet) == [1, 4, 50]
    condemn(fleet, bad.version)
    topic.follow()
    assert items_of(fleet) == [1, 2, 3, 4]


def test_the_first_delta_of_a_base_found_bad_takes_only_its_own_changes_with_it(fleet: Fleet) -> None:
    topic = Topic(fleet)
    for item, partition in ((3, 0), (4, 1), (5, 2)):
        topic.rows.setdefault(partition, [])
        topic.start()
        topic.add(item, partition)
    bad = topic.follow()[0]
    topic.add(6, 0)
    topic.follow()
    topic.start()  # another process; the group has committed all
    topic.next = {0: 2, 1: 1, 2: 1}
    condemn(fleet, bad)
    topic.start()
    topic.follow()
    assert manifest(fleet).positions == {TOPIC: {0: 2, 1: 1, 2: 1}}
    assert items_of(fleet) == [1, 2, 6]


def test_a_process_that_has_published_nothing_yet_sees_that_what_it_builds_on_was_found_bad(fleet: Fleet) -> None:
    topic = Topic(fleet)
    for item in (3, 4, 5):
        topic.add(item)
    versions = topic.follow()
    topic.start()
    condemn(fleet, versions[1])
    topic.add(6)
    topic.follow()
    assert items_of(fleet) == [1, 2, 3, 5, 6]


def test_a_record_that_makes_a_version_found_bad_once_more_is_left_out_and_holds_up_none(fleet: Fleet) -> None:
    topic = Topic(fleet)
    topic.add(3)
    (bad,) = topic.follow()
    condemn(fleet, bad)
    topic.follow()
    topic.add(3)  # the same bytes over the same version
    topic.add(4)
    topic.follow()
    assert items_of(fleet) == [1, 2, 4]


def test_what_somebody_took_back_by_hand_stays_out(fleet: Fleet) -> None:
    topic = rolled_back(fleet)
    assert topic.follow() == []
    topic.add(5)
    topic.follow()
    assert items_of(fleet) == [1, 2, 3, 5]


def test_a_start_begins_where_the_current_version_stands(fleet: Fleet) -> None:
    topic = rolled_back(fleet)
    topic.start()
    assert topic.next == {0: 1}
    topic.follow()
    assert items_of(fleet) == [1, 2, 3, 4]


def test_a_start_that_could_not_ask_goes_back_before_it_publishes(fleet: Fleet) -> None:
    topic = rolled_back(fleet)
    topic.add(5)
    topic.add(6, 1)
    topic.feed = ChangeFeed(DeltaPublisher(fleet.publisher), MODEL, TOPIC)
    topic.next = {0: 2}  # of the group
    topic.follow()
    assert items_of(fleet) == [1, 2, 3, 4, 5, 6]


def test_a_slow_process_does_not_undo_what_another_has_published_since(fleet: Fleet) -> None:
    topic = Topic(fleet)
    topic.add(3)
    topic.follow()
    old = ChangeRecord(0, 1, None, json.dumps(row(4, sid=[9, 9])).encode())
    new = ChangeRecord(0, 2, None, json.dumps(row(4, sid=[7, 7])).encode())
    ChangeFeed(DeltaPublisher(fleet.publisher), MODEL, TOPIC).publish([old, new])
    assert topic.feed.publish([old]).version is None
    assert topic.feed.publish([ChangeRecord(1, 0, None, json.dumps(row(5)).encode())]).version is not None
    assert manifest(fleet).positions == {TOPIC: {0: 3, 1: 1}}
    with fleet.watcher():
        until_active(fleet, current(fleet))
        assert served(fleet)[4] == (7, True)


def test_a_topic_made_anew_is_read_from_its_beginning(fleet: Fleet) -> None:
    topic = Topic(fleet)
    for item in (3, 4, 5):
        topic.add(item)
    topic.follow()
    topic.rows[0] = [6]
    topic.next = {0: 0}  # as Kafka does where an offset is out of range
    topic.follow()
    assert items_of(fleet) == [1, 2, 3, 4, 5, 6]
    assert manifest(fleet).positions == {TOPIC: {0: 1}}


def test_positions_that_make_no_sense_are_an_error(fleet: Fleet) -> None:
    raw = msgspec.json.encode(manifest(fleet))
    for bad in (b'{"topic":{"0":-1}}', b'{"topic":{"-1":0}}', b'{"topic":{"0":9223372036854775808}}', b'{"topic":[0]}'):
        with pytest.raises(CatalogError, match="positions"):
            Manifest.read(raw[:-1] + b',"positions":' + bad + b"}")
    fleet.redis.hset(fleet.keys.positions(current(fleet).version), f"{TOPIC}/0", "x")
    with pytest.raises(CatalogError, match=r"positions:.*'x'") as caught:
        Topic(fleet)
    assert caught.value.reason == "positions"
