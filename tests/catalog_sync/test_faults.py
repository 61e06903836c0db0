"""Redis and publishers that fail: serving goes on, staleness says so, and what is right in the end is served."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from pydantic import SecretStr

from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.fleet_quarantine import FleetQuarantine
from catalog_sync.layout import Pointer
from catalog_sync.publisher import Publisher
from catalog_sync.state import WatchState
from catalog_sync.watcher import Watcher
from consumer.service.settings import ServiceSettings
from consumer.service.status import ServiceStatus
from engine.errors import CatalogError
from tests.black_hole import BlackHole
from tests.catalog_sync.redis_support import MODEL, Fleet, version_with
from tests.consumer.waiting import eventually


@pytest.fixture
def fleet(server: EmbeddedRedis) -> Iterator[Fleet]:
    running = Fleet(server)
    yield running
    running.close()


def staleness_metric(watcher: Watcher) -> float:
    """What a scrape of the service says."""
    status = ServiceStatus(ServiceSettings.model_validate({"engine": {"model": "m"}}))
    status.watcher = watcher
    status.refresh()
    value = status.registry.get_sample_value("recallstream_catalog_staleness_seconds")
    assert value is not None
    return value


def check_serves(fleet: Fleet, pointer: Pointer, items: int) -> None:
    with fleet.store.pin() as resident:
        assert (resident.version, resident.live_total()) == (pointer.version, items)


@contextmanager
def serving(fleet: Fleet, pointer: Pointer, items: int) -> Iterator[None]:
    """Answers from ``pointer``'s version all the time, on a thread as the device's."""
    stop, wrong = threading.Event(), list[BaseException]()

    def answer() -> None:
        try:
            while not stop.wait(0.005):
                check_serves(fleet, pointer, items)
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert wrong == []


def outage(own: EmbeddedRedis, fleet: Fleet, watcher: Watcher, lasts: Callable[[], Any]) -> None:
    """Redis is away while ``lasts`` runs, and comes back without its data."""
    pointer = fleet.publish(range(5))
    eventually(lambda: fleet.store.active == pointer.version and watcher.snapshot().state == "current")
    with serving(fleet, pointer, 5):
        own.kill()
        eventually(lambda: watcher.snapshot().state == "unreachable")
        before = staleness_metric(watcher)
        lasts()
        eventually(lambda: staleness_metric(watcher) > before)
        check_serves(fleet, pointer, 5)
        own.start()
        again = fleet.publish(range(5))
        assert again.version == pointer.version
        longest = fleet.settings.poll_seconds * (1 + fleet.settings.poll_jitter) + fleet.settings.socket_timeout
        eventually(lambda: watcher.snapshot().generation == again.generation, timeout=longest)
        assert watcher.snapshot().state == "current"
        assert staleness_metric(watcher) < before


def test_redis_down_costs_nothing_but_staleness_and_is_back_within_a_poll() -> None:
    with EmbeddedRedis() as own:
        fleet = Fleet(own, poll_seconds=0.5)
        with fleet.watcher() as watcher:
            outage(own, fleet, watcher, lambda: eventually(lambda: watcher.snapshot().reconnects > 2))
        fleet.close()


@pytest.mark.stress
@pytest.mark.timeout(180)
def test_redis_down_for_a_minute() -> None:
    with EmbeddedRedis() as own:
        fleet = Fleet(own, poll_seconds=10.0)
        with fleet.watcher() as watcher:
            outage(own, fleet, watcher, lambda: threading.Event().wait(60))
            assert watcher.snapshot().reconnects < 60  # calm, not a hot loop
        fleet.close()


def test_a_minute_without_redis_is_retried_calmly_and_followed_within_a_poll() -> None:
    state = WatchState(10.0, 0.2, 0.1, started=0.0, random=lambda: 0.5)
    state.pointer_read(Pointer("v1", 1, "h"), 0.0)
    state.activate(0.0)
    now, tries = state.wait(0.0), 0
    while now < 60.0:
        state.fail(CatalogError("unreachable", "down"), now)
        tries += 1
        assert state.staleness(now) == now
        now += state.wait(now)
    assert 8 <= tries <= 20
    assert now - 60.0 <= 12.0  # when it looks again after the minute
    assert state.pointer_read(Pointer("v2", 2, "h"), now) is not None


def test_a_black_holed_redis_is_left_for_a_new_connection(fleet: Fleet, server: EmbeddedRedis) -> None:
    """Every connection goes silent, nothing is closed: no error comes, only no answers."""
    hole = BlackHole(server.port)
    fleet.settings = fleet.settings.model_copy(
        update={"url": SecretStr(f"redis://127.0.0.1:{hole.port}/0"), "socket_timeout": 0.5, "poll_seconds": 1.0}
    )
    try:
        with fleet.watcher() as watcher:
            pointer = fleet.publish(range(5))
            eventually(lambda: fleet.store.active == pointer.version and watcher.snapshot().state == "current")
            for items in (range(6), range(7)):
                with serving(fleet, pointer, len(items) - 1):
                    hole.swallow()
                    stale = staleness_metric(watcher)
                    eventually(lambda stale=stale: staleness_metric(watcher) > stale)  # type: ignore[misc]
                pointer = fleet.publish(items)
                eventually(lambda: fleet.store.active == pointer.version, timeout=4.0)  # noqa: B023
            eventually(lambda: watcher.snapshot().state == "current")
    finally:
        hole.close()


def test_a_lost_notice_is_made_up_for_by_the_poll(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.poll_seconds = 0.2
    fleet.__post_init__()
    monkeypatch.setattr(
        "catalog_sync.listener.subscribe", lambda client, _: client.pubsub(ignore_subscribe_messages=False)
    )
    with fleet.watcher() as watcher:
        for items in (range(5), range(6)):
            pointer = fleet.publish(items)
            eventually(lambda: fleet.store.active == pointer.version)  # noqa: B023
        assert watcher.snapshot().notices == 0


def test_a_replica_that_is_promoted_is_followed() -> None:
    """The address moves to the replica, as a proxy or a DNS name does; the old master stays away."""
    with EmbeddedRedis() as master, EmbeddedRedis() as replica:
        fleet, heir = Fleet(master, poll_seconds=0.5), Fleet(replica, poll_seconds=0.5)
        heir.redis.replicaof("127.0.0.1", str(master.port))
        pointer = fleet.publish(range(5))
        eventually(lambda: heir.redis.exists(fleet.keys.current(MODEL)), timeout=10.0)
        hole = BlackHole(master.port)
        fleet.settings = fleet.settings.model_copy(update={"url": SecretStr(f"redis://127.0.0.1:{hole.port}/0")})
        heir_keys = Publisher(heir.redis, fleet.namespace)
        try:
            with fleet.watcher() as watcher:
                eventually(lambda: fleet.store.active == pointer.version)
                with serving(fleet, pointer, 5):
                    master.kill()
                    heir.redis.replicaof("NO", "ONE")
                    hole.forward_to(replica.port)
                    eventually(lambda: watcher.snapshot().reconnects >= 1)
                    eventually(lambda: watcher.snapshot().state == "current")
                promoted = heir_keys.publish(*version_with(range(6)))
                assert promoted.generation > pointer.generation
                eventually(lambda: fleet.store.active == promoted.version)
        finally:
            hole.close()
            fleet.close()
            heir.close()


class Killed(BaseException):
    """The process ends here."""


class MortalClient:
    """A client whose process is killed before its ``at``-th command."""

    def __init__(self, client: redis.Redis, at: int) -> None:
        self._client, self._left = client, at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return self._mortal(found) if callable(found) else found

    def register_script(self, text: str) -> Callable[..., Any]:
        return self._mortal(self._client.register_script(text))

    def _mortal(self, command: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            if self._left == 0:
                raise Killed
            self._left -= 1
            return command(*arguments, **options)

        return run


def killed_before_each_command(fleet: Fleet, act: Callable[[Publisher], object]) -> Iterator[int]:
    """Let ``act`` die before its first command, then its second, ..., until it lives; yields after every death."""
    for at in itertools.count():
        publisher = Publisher(MortalClient(fleet.redis, at), fleet.namespace)  # type: ignore[arg-type]  # looks the same
        try:
            act(publisher)
        except Killed:
            yield at
        else:
            return


def test_a_publisher_killed_between_any_two_commands_leaves_the_old_version_or_the_new_one(fleet: Fleet) -> None:
    good = fleet.publish(range(5))
    manifest, data = version_with(range(150))
    with fleet.watcher() as watcher:
        eventually(lambda: fleet.store.active == good.version)
        deaths = 0
        for at in killed_before_each_command(fleet, lambda publisher: publisher.publish(manifest, data)):
            deaths = at
            polls = watcher.snapshot().polls
            fleet.redis.publish(fleet.keys.notify, 1)
            eventually(lambda polls=polls: watcher.snapshot().polls > polls)  # type: ignore[misc]
            assert (fleet.store.active, watcher.snapshot().refused) == (good.version, {})
        assert deaths > 2 * len(manifest.chunks)
        eventually(lambda: fleet.store.active == manifest.version)


def test_a_quarantine_killed_between_any_two_commands_is_finished_by_the_next(fleet: Fleet) -> None:
    good, bad = fleet.publish(range(5)), fleet.publish(range(6))

    def condemn(publisher: Publisher) -> None:
        FleetQuarantine(publisher.client, publisher.keys, publisher).condemn(bad.version, "operator", "x", "me")

    for _ in killed_before_each_command(fleet, condemn):
        pointer = fleet.publisher.pointer(MODEL)
        assert pointer is not None
        assert pointer.version in (good.version, bad.version)
    pointer = fleet.publisher.pointer(MODEL)
    assert pointer is not None
    assert pointer.version == good.version
    assert set(fleet.publisher.status().quarantine) == {bad.version}


def test_two_publishers_at_once_leave_one_of_their_versions_whole(fleet: Fleet) -> None:
    outcomes: list[str] = []

    def publish(sizes: Sequence[int]) -> None:
        for size in sizes:
            try:
                outcomes.append(fleet.publish(range(size)).version)
            except CatalogError as error:
                outcomes.append(error.reason)

    with fleet.watcher() as watcher:
        threads = [threading.Thread(target=publish, args=(range(begin, 300, 20),)) for begin in (150, 160)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pointer = fleet.publisher.pointer(MODEL)
        assert pointer is not None
        assert pointer.version in outcomes
        assert set(outcomes) - {"conflict"} <= {manifest.version for manifest in fleet.publisher.status().manifests}
        eventually(lambda: fleet.store.active == pointer.version)
        assert watcher.snapshot().refused == {}


def test_both_upload_the_same_version_at_once(fleet: Fleet) -> None:
    manifest, data = version_with(range(300))
    errors: list[CatalogError] = []
    barrier = threading.Barrier(2)

    def upload() -> None:
        barrier.wait()
        try:
            fleet.publisher.upload(manifest, data)
        except CatalogError as error:
            errors.append(error)

    threads = [threading.Thread(target=upload) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    pointer = fleet.publisher.activate(manifest.version)
    with fleet.watcher():
        eventually(lambda: fleet.store.active == pointer.version)
