import socket
from pathlib import Path

import pytest
import redis

from catalog_sync.embedded import EmbeddedRedis
from engine.errors import CatalogError


def test_the_server_is_bound_to_loopback_only_and_ends_with_the_block() -> None:
    with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()
        assert client.config_get("bind")["bind"] == "127.0.0.1"
        port, process = server.port, client.info("server")["process_id"]
    assert not Path(f"/proc/{process}").exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1.0)


def test_two_servers_do_not_share_anything() -> None:
    with EmbeddedRedis() as one, EmbeddedRedis() as two:
        assert one.port != two.port
        with redis.Redis.from_url(one.url) as first, redis.Redis.from_url(two.url) as second:
            first.set("key", "value")
            assert second.get("key") is None


def test_a_restart_keeps_the_port_and_what_was_saved() -> None:
    with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
        client.set("key", "value")
        client.save()
        port = server.port
        server.kill()
        assert server.start().port == port
        assert client.get("key") == b"value"


def test_a_taken_port_is_an_error_not_the_neighbours_server() -> None:
    with EmbeddedRedis() as server, pytest.raises(CatalogError, match="did not start"):
        EmbeddedRedis(server.port).start()


def test_a_server_on_the_path_comes_before_the_packaged_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "redis-server"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CatalogError, match=str(fake)):
        EmbeddedRedis().start()
