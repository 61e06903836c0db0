"""What the address of Redis may be."""

from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

from catalog_sync.connection import connect
from catalog_sync.settings import CatalogSettings
from engine.errors import CatalogError


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("nonsense", "redis://"),
        ("", "redis://"),
        ("http://127.0.0.1", "redis://"),
        ("redis://127.0.0.1:99999/0", "Port"),
        ("redis://127.0.0.1/0?socket_timeout=soon", "socket_timeout"),
        ("redis://127.0.0.1/0?colour=red", "colour"),
        ("redis://[::1/0", "IPv6"),
        ("redis://a..b:1", "makes no sense: .*label"),
        (f"redis://{'a' * 64}.example:1", "makes no sense: .*label"),
        ("redis://127.0.0.1/0?decode_responses=True", "decode_responses"),
    ],
)
def test_an_address_that_makes_no_sense_is_told_before_anything_connects(url: str, named: str) -> None:
    with pytest.raises(CatalogError, match=named):
        connect(CatalogSettings(url=SecretStr(url)))


def test_a_password_is_not_quoted() -> None:
    with pytest.raises(CatalogError, match="written as %2F") as caught:
        connect(CatalogSettings(url=SecretStr("redis://:se/cret@127.0.0.1/0")))
    assert "se" not in caught.value.message.replace("sense", "").replace("password", "")


def test_a_unix_socket_is_an_address(tmp_path: Path) -> None:
    with (
        connect(CatalogSettings(url=SecretStr(f"unix://{tmp_path}/redis.sock"))) as client,
        pytest.raises(redis.ConnectionError, match=r"redis\.sock"),
    ):
        client.ping()
