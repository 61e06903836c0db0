from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.layout import Canary, Manifest
from catalog_sync.signing import TrustedKeys, sign, write_key_pair
from engine.errors import CatalogError
from tests.catalog_sync.redis_support import Fleet, version_with
from tests.consumer.waiting import eventually

MANIFEST = msgspec.structs.replace(version_with(range(50))[0], canaries=(Canary({"history": [1], "top_k": 3}),))


class Keys:
    """A key pair in two files."""

    def __init__(self, directory: Path, name: str) -> None:
        self.private, self.public = directory / f"{name}.key", directory / f"{name}.pub"
        write_key_pair(self.private, self.public)


@pytest.fixture
def ours(tmp_path: Path) -> Keys:
    return Keys(tmp_path, "ours")


def reason_of(call: Any) -> str:
    with pytest.raises(CatalogError) as caught:
        call()
    return caught.value.reason


def test_a_signed_manifest_passes_and_survives_the_way_through_redis(ours: Keys, tmp_path: Path) -> None:
    signed = sign(MANIFEST, ours.private)
    read = Manifest.read(msgspec.json.encode(signed))
    TrustedKeys([ours.public]).check(read)
    TrustedKeys([Keys(tmp_path, "next").public, ours.public]).check(read)  # while keys change
    TrustedKeys([]).check(MANIFEST)


def test_unsigned_and_wrongly_signed_are_told_apart(ours: Keys, tmp_path: Path) -> None:
    trusted = TrustedKeys([ours.public])
    assert reason_of(lambda: trusted.check(MANIFEST)) == "unsigned"
    foreign = sign(MANIFEST, Keys(tmp_path, "theirs").private)
    assert reason_of(lambda: trusted.check(foreign)) == "signature"
    for garbage in ("?", "", "AAAA"):
        bad = msgspec.structs.replace(MANIFEST, signature=garbage)
        assert reason_of(lambda bad=bad: trusted.check(bad)) == "signature"


CHANGES: dict[str, Any] = {
    **{"format": 99, "version": "0" * 16, "model": "other", "sizes": (64, 65), "items": 51, "leaves": 49, "size": 1},
    **{"chunk_bytes": 2048, "sha256": "0" * 64, "chunks": ("0" * 64,), "label": "x", "ids": "string"},
    **{"fields": {"title": "int64"}, "parent": "p", "parent_manifest": "h", "withdrawn": 1, "full_of": "v"},
    **{"canaries": (), "positions": {"topic": {0: 1}}},
}


def test_every_field_of_a_manifest_is_signed(ours: Keys) -> None:
    assert set(CHANGES) == set(Manifest.__struct_fields__) - {"signature"}
    trusted, signed = TrustedKeys([ours.public]), sign(MANIFEST, ours.private)
    for name, value in CHANGES.items():
        changed = msgspec.structs.replace(signed, **{name: value})
        assert getattr(signed, name) != value, name
        assert reason_of(lambda changed=changed: trusted.check(changed)) == "signature", name


def test_files_that_are_no_ed25519_keys_are_named(ours: Keys, tmp_path: Path) -> None:
    other = tmp_path / "x"
    assert reason_of(lambda: TrustedKeys([other])) == "key"
    other.write_text("no key")
    for call in (
        lambda: TrustedKeys([other]),
        lambda: sign(MANIFEST, other),
        lambda: TrustedKeys([ours.private]),
        lambda: sign(MANIFEST, ours.public),
        lambda: write_key_pair(ours.private, tmp_path / "new"),
    ):
        assert reason_of(call) == "key"
    assert ours.private.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def fleet(server: EmbeddedRedis, ours: Keys) -> Iterator[Fleet]:
    running = Fleet(server, trusted_keys=(ours.public,))
    yield running
    running.close()


def test_an_instance_serves_what_a_trusted_key_signed_and_refuses_the_rest(
    fleet: Fleet, ours: Keys, tmp_path: Path
) -> None:
    def publish(items: range, key: Path | None) -> str:
        manifest, data = version_with(items)
        return fleet.publisher.publish(sign(manifest, key) if key else manifest, data).version

    with fleet.watcher() as watcher:
        good = publish(range(5), ours.private)
        eventually(lambda: fleet.store.active == good)
        publish(range(6), None)
        eventually(lambda: watcher.snapshot().reason == "unsigned")
        publish(range(7), Keys(tmp_path, "theirs").private)
        eventually(lambda: watcher.snapshot().reason == "signature")
        assert fleet.store.resident() == (good,)
        again = publish(range(8), ours.private)
        eventually(lambda: fleet.store.active == again)


def test_a_version_published_unsigned_cannot_be_signed_afterwards(fleet: Fleet, ours: Keys) -> None:
    manifest, data = version_with(range(5))
    fleet.publisher.upload(manifest, data)
    signed = sign(manifest, ours.private)
    with pytest.raises(CatalogError, match="unsigned") as caught:
        fleet.publisher.upload(signed, data)
    assert caught.value.reason == "verify"
    fresh, data = version_with(range(6))
    assert fleet.publisher.upload(sign(fresh, ours.private), data).signature
    relabelled = sign(msgspec.structs.replace(fresh, label="again"), ours.private)
    assert fleet.publisher.upload(relabelled, data).label is None  # the first publisher's label and signature stay
