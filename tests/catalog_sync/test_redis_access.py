"""Redis users with the documented rights, and Redis over TLS."""

import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import redis
from pydantic import SecretStr

from catalog_sync.connection import connect
from catalog_sync.deltas import DeltaPublisher
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.fleet_quarantine import FleetQuarantine
from catalog_sync.pins import Pins
from catalog_sync.prune import Pruner
from catalog_sync.publisher import Publisher
from catalog_sync.settings import CatalogSettings
from engine.errors import CatalogError
from tests.catalog_sync.certificates import Authority
from tests.catalog_sync.redis_support import MODEL, Fleet, ack_of, version_with
from tests.consumer.waiting import eventually

PAGE = (Path(__file__).parents[2] / "docs" / "catalog.md").read_text()


def documented_rules(user: str, fleet: Fleet) -> list[str]:
    """The ACL line of the documentation, for a fleet's namespace and instance."""
    [line] = re.findall(rf"^ACL SETUSER {user} (.+)$", PAGE, re.MULTILINE)
    line = line.replace("recallstream", fleet.namespace).replace("INSTANCE", fleet.settings.instance)
    return ["reset", *line.replace("PASSWORD", "pass").split()]


@pytest.fixture
def fleet(server: EmbeddedRedis) -> Iterator[Fleet]:
    running = Fleet(server, group="g", guard_requests=20)
    yield running
    running.close()


def as_user(fleet: Fleet, user: str) -> redis.Redis:
    fleet.connect_as(user, "pass", documented_rules(user, fleet))
    return connect(fleet.settings)


def test_an_instance_needs_no_more_than_the_documented_rights(fleet: Fleet) -> None:
    fleet.connect_as("consumer", "pass", documented_rules("consumer", fleet))
    pins, quarantine = Pins(fleet.redis, fleet.keys), FleetQuarantine(fleet.redis, fleet.keys, fleet.publisher)
    with fleet.watcher() as watcher:
        first, second = fleet.publish(range(5)), fleet.publish(range(6))
        eventually(lambda: fleet.store.active == second.version)
        pins.serve("g", first.version)
        eventually(lambda: fleet.store.active == first.version)
        pins.remove("g")
        eventually(lambda: fleet.store.active == second.version)
        quarantine.condemn(second.version, "operator", "x", "me")
        eventually(lambda: fleet.store.active == first.version)
        eventually(lambda: ack_of(fleet).version == first.version and ack_of(fleet).state == "current")
        assert watcher.snapshot().refused == {}
        assert watcher.snapshot().reconnects == 0


@pytest.mark.parametrize(
    "command",
    [
        ("SET", "{ns}:ack:other", "x"),
        ("SET", "{ns}:ack:{me}0", "x"),
        ("SET", "{ns}:manifest:v", "x"),
        ("HSET", "{ns}:current:m", "version", "v"),
        ("HSET", "{ns}:quarantine", "v", "x"),
        ("SET", "{ns}:pin:g", "x"),
        ("DEL", "{ns}:chunk:v:0"),
        ("PUBLISH", "{ns}:notify", "1"),
        ("GET", "elsewhere"),
        ("SUBSCRIBE", "elsewhere"),
        ("EVAL", "return 1", "0"),
        ("SCAN", "0"),
        ("KEYS", "*"),
        ("FLUSHALL",),
        ("CONFIG", "GET", "*"),
        ("ACL", "LIST"),
        ("MULTI",),
    ],
    ids=" ".join,
)
def test_an_instance_may_do_nothing_else(fleet: Fleet, command: tuple[str, ...]) -> None:
    names = {"{ns}": f"{{{fleet.namespace}}}", "{me}": fleet.settings.instance}
    words = [word.replace("{ns}", names["{ns}"]).replace("{me}", names["{me}"]) for word in command]
    with as_user(fleet, "consumer") as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*words)


def test_a_publisher_needs_no_more_than_the_documented_rights(fleet: Fleet) -> None:
    with as_user(fleet, "publisher") as client:
        publisher = Publisher(client, fleet.namespace)
        first, second, third = (publisher.publish(*version_with(range(n))) for n in (5, 6, 7))
        assert publisher.rollback(MODEL).version == second.version
        pins = Pins(client, fleet.keys)
        pins.keep("g", first.version)
        pins.remove("g")
        FleetQuarantine(client, fleet.keys, publisher).condemn(third.version, "operator", "x", "me")
        assert publisher.status().quarantine.keys() == {third.version}
        assert Pruner(client, fleet.keys, publisher).prune(0).versions.keys() == {third.version}
        deltas = DeltaPublisher(publisher)
        changed, _ = deltas.publish(deltas.head(MODEL), None, [np.array([1], dtype=np.int64)])
        assert deltas.rebase(changed.version).full_of == changed.version
        for refused in (("FLUSHALL",), ("GET", "elsewhere"), ("KEYS", "*"), ("CONFIG", "GET", "*")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*refused)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "ca")


@pytest.fixture(scope="module")
def tls_port(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A Redis that speaks TLS only and wants a client's certificate."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pair = authority.issue("server")
    options = {
        **{"port": 0, "tls-port": port, "bind": "127.0.0.1", "save": "", "dir": tmp_path_factory.mktemp("redis")},
        **{"tls-cert-file": pair.certificate, "tls-key-file": pair.key, "tls-ca-cert-file": authority.ca},
    }
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    process = subprocess.Popen(["redis-server", *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "eady to accept connections" in line:
            break
    else:
        pytest.skip("this redis-server is built without TLS")
    yield port
    process.kill()
    process.communicate()


def tls_settings(port: int, **files: Path | None) -> CatalogSettings:
    return CatalogSettings.model_validate({"url": f"rediss://127.0.0.1:{port}/0", "socket_timeout": 5.0, **files})


def test_instances_and_publishers_speak_tls_with_certificates_of_their_own(
    authority: Authority, tls_port: int, server: EmbeddedRedis
) -> None:
    client = authority.issue("client")
    settings = tls_settings(tls_port, tls_ca=authority.ca, tls_certificate=client.certificate, tls_key=client.key)
    fleet = Fleet(server)
    files = {name: getattr(settings, name) for name in ("url", "tls_ca", "tls_certificate", "tls_key")}
    fleet.settings = fleet.settings.model_copy(update={**files, "socket_timeout": 5.0})
    with connect(settings) as redis_over_tls, fleet.watcher() as watcher:
        publisher = Publisher(redis_over_tls, fleet.namespace)
        for items in (range(5), range(6)):
            pointer = publisher.publish(*version_with(items))
            eventually(lambda: fleet.store.active == pointer.version)  # noqa: B023
        eventually(lambda: watcher.snapshot().notices >= 1)
    fleet.close()


def test_a_server_of_an_unknown_authority_a_client_without_certificate_and_plain_text_are_refused(
    authority: Authority, tls_port: int, tmp_path: Path
) -> None:
    client = authority.issue("another")
    unknown = tls_settings(
        tls_port, tls_ca=Authority(tmp_path, "unknown").ca, tls_certificate=client.certificate, tls_key=client.key
    )
    for settings in (
        unknown,
        tls_settings(tls_port, tls_ca=authority.ca),
        CatalogSettings(url=SecretStr(f"redis://127.0.0.1:{tls_port}/0"), socket_timeout=5.0),
    ):
        with connect(settings) as refused, pytest.raises(redis.RedisError):
            refused.ping()


def test_tls_files_for_a_plain_url_are_an_error_and_not_ignored(authority: Authority) -> None:
    with pytest.raises(CatalogError, match="rediss://"):
        connect(CatalogSettings(tls_ca=authority.ca))
