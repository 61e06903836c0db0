"""The copy of histories in a real Redis: what is written is read, and only over what its writer knew."""

from collections.abc import Iterator

import msgspec
import pytest
import redis

from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.settings import CatalogSettings
from consumer.histories.history import Head
from consumer.histories.items import Cap
from consumer.histories.operation import UserKey, Write
from consumer.histories.redis_store import RedisStore, store_of
from consumer.histories.settings import HistorySettings
from consumer.histories.store import StoreError
from tests.consumer.test_histories import CAP, USER, Member

KEY = "recallstream:history:t:u"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as each:
        yield each


@pytest.fixture
def client(server: EmbeddedRedis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as each:
        yield each
        each.flushall()


def store_at(url: str, cap: Cap = CAP, **more: int) -> RedisStore:
    settings = HistorySettings.model_validate({"store": "write-through", "url": url, **more})
    found = store_of(settings, CatalogSettings(), cap)
    assert found is not None
    return found


@pytest.fixture
def store(server: EmbeddedRedis) -> Iterator[RedisStore]:
    each = store_at(server.url)
    yield each
    each.close()


def settle(member: Member, store: RedisStore) -> list[bool]:
    """Turns with a real store; whether each write was done."""
    outcomes: list[bool] = []
    for _ in range(10):
        writes, users = member.keeper.take_writes(100), member.keeper.take_loads(100)
        done, found = store.exchange(writes, users)
        outcomes += done
        for write, ok in zip(writes, done, strict=True):
            member.take(member.keeper.written(write, done=ok))
        for user, stored in zip(users, found, strict=True):
            member.take(member.keeper.loaded(user, stored))
    return outcomes


def read(store: RedisStore, user: UserKey = USER) -> list[int | str] | None:
    items = store.exchange((), [user])[1][0].history.snapshot()
    return None if items is None else list(items)


@pytest.mark.parametrize("items", [[1, 2, 3], ["a", "b\0", "\N{SNOWMAN}"]], ids=["ints", "strings"])
def test_chunks_that_were_written_one_by_one_are_read_as_one_history(
    store: RedisStore, client: redis.Redis, items: list[int | str]
) -> None:
    member = Member()
    for offset, item in enumerate(items):
        member.submit(offset, "append", [item])  # type: ignore[arg-type]  # of one kind
        assert settle(member, store) == [True]
    assert read(store) == items
    assert client.hkeys(KEY) == [b"head", b"0", b"1", b"2"]


def test_a_write_over_what_its_writer_did_not_know_is_not_done(store: RedisStore) -> None:
    first, second = Member(), Member()
    for member in (first, second):
        member.submit(0, "append", [1])
        store_turn = member.keeper.take_loads(10)
        member.take(member.keeper.loaded(USER, store.exchange((), store_turn)[1][0]))
    assert settle(first, store) == [True]
    assert settle(second, store) == [False]
    assert (read(store), second.released) == ([1], [0])


def test_a_forgotten_user_leaves_a_mark_that_ends_and_a_history_stays_or_lives_as_long_as_set(
    server: EmbeddedRedis, store: RedisStore, client: redis.Redis
) -> None:
    member = Member()
    member.submit(0, "append", [1])
    settle(member, store)
    assert client.ttl(KEY) == -1
    member.submit(1, "forget")
    settle(member, store)
    assert 0 < client.ttl(KEY) <= 604_800
    assert client.hget(KEY, "0") == b""
    member.submit(2, "append", [2])
    settle(member, store)
    assert client.ttl(KEY) == -1
    living = store_at(server.url, ttl_s=100)
    member.submit(3, "append", [3])
    settle(member, living)
    living.close()
    assert 0 < client.ttl(KEY) <= 100


def test_what_is_damaged_counts_as_nothing_and_is_written_over(store: RedisStore, client: redis.Redis) -> None:
    endless = msgspec.msgpack.encode(Head((), "str", 1 << 40))
    for damage in ({"head": b"\xff"}, {"0": b"abc"}, {"7": b"12345678"}, {"head": endless}):
        client.flushall()
        member = Member()
        member.submit(0, "append", [1])
        settle(member, store)
        client.hset(KEY, mapping=damage)  # type: ignore[arg-type]
        assert read(store) is None
        later = Member()
        later.submit(1, "append", [2])
        settle(later, store)
        assert read(store) == [2]


def test_a_key_of_another_type_counts_as_nothing_is_written_over_and_holds_up_nobody(
    store: RedisStore, client: redis.Redis
) -> None:
    client.set(KEY, b"not a hash")
    member, other = Member(), UserKey("t", "other")
    member.submit(0, "append", [1])
    member.submit(1, "append", [7], other)
    settle(member, store)
    assert sorted(member.released) == [0, 1]
    assert (read(store), read(store, other)) == ([1], [7])


def test_a_redis_that_takes_no_writes_is_a_store_error(store: RedisStore, client: redis.Redis) -> None:
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreError, match="maxmemory"):
            store.exchange([Write(USER, b"", b"h", False, 0, b"", True, 1, 0)], ())
    finally:
        client.config_set("maxmemory", 0)


def test_a_redis_that_does_not_answer_is_a_store_error(client: redis.Redis) -> None:
    away = store_at("redis://127.0.0.1:1/0")
    with pytest.raises(StoreError):
        away.exchange((), [UserKey("t", "u")])
    with pytest.raises(StoreError):
        away.exchange([Write(USER, b"", b"h", True, 0, b"", True, 1, 0)], ())
