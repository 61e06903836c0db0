"""The Redis user of histories needs the rights that the page names, and no others."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from pydantic import SecretStr

from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.settings import CatalogSettings
from consumer.histories.history import History
from consumer.histories.items import Cap, PackedItems
from consumer.histories.operation import UserKey, Write
from consumer.histories.redis_store import RedisStore, store_of
from consumer.histories.settings import HistorySettings
from consumer.histories.store import StoreError

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
CAP = Cap(100, 10)
USER = UserKey("recall.requests", "u")


@pytest.fixture(scope="module")
def url() -> Iterator[SecretStr]:
    """A Redis, for a user with the documented rights alone."""
    [line] = re.findall(r"^ACL SETUSER histories (.+)$", PAGE, re.MULTILINE)
    with EmbeddedRedis() as server:
        with redis.Redis.from_url(server.url) as admin:
            admin.execute_command("ACL", "SETUSER", "histories", *line.replace("PASSWORD", "pass").split())
        yield SecretStr(server.url.replace("redis://", "redis://histories:pass@"))


@contextmanager
def opened(url: SecretStr, **settings: Any) -> Iterator[RedisStore]:
    store = store_of(HistorySettings(store="write-through", url=url, **settings), CatalogSettings(), CAP)
    assert store is not None
    with closing(store):
        yield store


def written(items: list[int], expected: bytes) -> Write:
    """The whole history; no items: it is forgotten."""
    history = History({0: len(items)}, PackedItems() if items else None)
    if history.items is not None:
        history.items.append(np.array(items), CAP)
    packed = b"" if history.items is None else history.items.packed
    return Write(USER, expected, history.head(), True, 0, packed, bool(items), 1, len(items))


@pytest.mark.parametrize("ttl_s", [0, 60])
def test_histories_are_written_read_and_forgotten_with_the_documented_rights(url: SecretStr, ttl_s: int) -> None:
    with opened(url, ttl_s=ttl_s) as store:
        (there,) = store.exchange([], [USER])[1]
        first = written([1, 2], there.head)
        done, (found,) = store.exchange([first], [USER])
        assert (done, found.head, found.chunks) == ([True], first.head, 1)
        done, (found,) = store.exchange([written([], first.head)], [USER])
        assert done == [True]
        assert found.history.items is None


def test_keys_of_another_namespace_are_not_theirs(url: SecretStr) -> None:
    with opened(url, namespace="other") as store, pytest.raises(StoreError, match="permission"):
        store.exchange([], [USER])
