"""Every class of damage ends in a refusal with the right reason, and the active version still answers."""

import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest

from catalog_sync import blob
from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.layout import Manifest, chunks_of, sha256
from catalog_sync.watcher import Watcher
from tests.catalog_sync.redis_support import MODEL, SIZES, Fleet
from tests.consumer.waiting import eventually
from tests.engine.catalogs import Item, catalog_of

PREFIX = struct.Struct("<8sIQ")
ITEMS = [
    Item(i, (i % 8, i % 3), float(i % 2), bool(i % 7), frozenset({f"t{i % 3}", *(["rare"] if i == 50 else [])}))
    for i in range(60)
]
GOOD = bytes(blob.encode(catalog_of(ITEMS, SIZES, model=MODEL)))
MANIFEST = Manifest.of(blob.decode(GOOD), GOOD, chunk_bytes=512)


@pytest.fixture(scope="module")
def running(server: EmbeddedRedis) -> Iterator[tuple[Fleet, Watcher]]:
    fleet = Fleet(server)
    with fleet.watcher() as watcher:
        yield fleet, watcher
    fleet.close()


@pytest.fixture
def serving(running: tuple[Fleet, Watcher]) -> tuple[Fleet, Watcher]:
    """Ten items are active and are what the pointer names, whatever the test before did."""
    fleet, watcher = running
    active = fleet.publish(range(10))
    eventually(lambda: watcher.snapshot().generation == active.generation and watcher.snapshot().state == "current")
    return running


def refusal(serving: tuple[Fleet, Watcher], manifest: bytes, data: bytes, name: str, digest: str | None = None) -> str:
    """Point the model at these bytes under ``name``, wait for the refusal; the active version answers before, after."""
    fleet, watcher = serving
    for number, chunk in enumerate(chunks_of(data, MANIFEST.chunk_bytes)):
        fleet.redis.set(fleet.keys.chunk(name, number), bytes(chunk))
    fleet.redis.set(fleet.keys.manifest(name), manifest)
    seen = sum(watcher.snapshot().refused.values())
    generation = int(fleet.redis.hget(fleet.keys.current(MODEL), "generation") or 0) + 1
    pointer: dict[Any, Any] = {"version": name, "generation": generation, "manifest": digest or sha256(manifest)}
    active = fleet.store.active
    fleet.redis.hset(fleet.keys.current(MODEL), mapping=pointer)
    fleet.redis.publish(fleet.keys.notify, generation)
    eventually(lambda: sum(watcher.snapshot().refused.values()) > seen or fleet.store.active != active, timeout=5.0)
    assert (fleet.store.active, fleet.store.resident()[0]) == (active, active)
    with fleet.store.pin() as resident:
        assert resident.live_total() == 10
    reason = eventually(lambda: watcher.snapshot().reason, timeout=5.0)
    for key in fleet.redis.scan_iter(fleet.keys.chunk(name, 0)[:-1] + "*"):
        fleet.redis.delete(key)
    fleet.redis.delete(fleet.keys.manifest(name))
    return reason


def hashed(data: bytes) -> tuple[bytes, bytes, str]:
    """A manifest whose every hash is right for ``data``, whatever that is; the data, and their version."""
    manifest = msgspec.structs.replace(
        MANIFEST,
        version=blob.version_of(data),
        size=len(data),
        sha256=sha256(data),
        chunks=tuple(sha256(chunk) for chunk in chunks_of(data, MANIFEST.chunk_bytes)),
    )
    return msgspec.json.encode(manifest), data, manifest.version


@pytest.mark.parametrize("chunk", range(len(MANIFEST.chunks)))
def test_a_flipped_bit_in_any_chunk(serving: tuple[Fleet, Watcher], chunk: int) -> None:
    data = bytearray(GOOD)
    data[chunk * MANIFEST.chunk_bytes + chunk % 64] ^= 1 << chunk % 8
    assert refusal(serving, msgspec.json.encode(MANIFEST), bytes(data), MANIFEST.version) == "checksum"


OTHER: dict[str, tuple[Any, str]] = {
    "format": (99, "format"),
    "version": ("0" * 16, "manifest"),
    "model": ("other", "incompatible"),
    "sizes": ((64, 65), "incompatible"),
    "items": (MANIFEST.items + 1, "manifest"),
    "leaves": (MANIFEST.leaves + 1, "manifest"),
    "size": (MANIFEST.size + MANIFEST.chunk_bytes, "manifest"),
    "chunk_bytes": (MANIFEST.chunk_bytes // 2, "manifest"),
    "sha256": ("0" * 64, "checksum"),
    "chunks": (("0" * 64, *MANIFEST.chunks[1:]), "checksum"),
    "ids": ("string", "manifest"),
    "fields": ({"title": "int64"}, "manifest"),
    "parent": ("p", "manifest"),
    "parent_manifest": ("h", "manifest"),
    "withdrawn": (3, "manifest"),
    "canaries": ([{"request": 1}], "manifest"),
    "positions": ({"topic": {"0": -1}}, "manifest"),
}
UNCHECKED = {"label", "full_of", "signature"}
"""Words for people, what a full form stands for (checked where it is asked for), and what only trusted keys check."""


def test_the_table_of_manifest_fields_is_complete() -> None:
    assert set(OTHER) | UNCHECKED == set(Manifest.__struct_fields__)


@pytest.mark.parametrize("field", OTHER)
def test_any_field_of_the_manifest_changed(serving: tuple[Fleet, Watcher], field: str) -> None:
    value, reason = OTHER[field]
    changed = msgspec.json.encode(msgspec.to_builtins(MANIFEST) | {field: value})
    published = sha256(msgspec.json.encode(MANIFEST))
    assert refusal(serving, changed, GOOD, MANIFEST.version, digest=published) == "checksum"
    assert refusal(serving, changed, GOOD, MANIFEST.version) == reason


REQUIRED = ("format", "version", "model", "sizes", "items", "leaves", "size", "chunk_bytes", "sha256", "chunks")


@pytest.mark.parametrize("field", REQUIRED)
def test_any_field_of_the_manifest_dropped_or_of_another_type(serving: tuple[Fleet, Watcher], field: str) -> None:
    fields = msgspec.to_builtins(MANIFEST)
    without = msgspec.json.encode({name: value for name, value in fields.items() if name != field})
    assert refusal(serving, without, GOOD, MANIFEST.version) == "manifest"
    assert refusal(serving, msgspec.json.encode(fields | {field: None}), GOOD, MANIFEST.version) == "manifest"


@pytest.mark.parametrize("keep", [0, 1, 10, -1])
def test_a_truncated_manifest(serving: tuple[Fleet, Watcher], keep: int) -> None:
    assert refusal(serving, msgspec.json.encode(MANIFEST)[:keep], GOOD, MANIFEST.version) == "manifest"


def header_of(data: bytes) -> tuple[dict[str, Any], int]:
    magic, form, length = PREFIX.unpack_from(data)
    assert (magic, form) == (blob.MAGIC, blob.FORMAT)
    return msgpack.unpackb(data[PREFIX.size : PREFIX.size + length]), -(-(PREFIX.size + length) // 64) * 64


def with_header(change: Callable[[dict[str, Any]], object]) -> bytes:
    header, begin = header_of(GOOD)
    change(header)
    packed: bytes = msgpack.packb(header)
    start = PREFIX.pack(blob.MAGIC, blob.FORMAT, len(packed)) + packed
    return start.ljust(-(-len(start) // 64) * 64, b"\0") + GOOD[begin:]


HEADER: dict[str, Any] = {
    "model": ("other", "manifest"),
    "sizes": ([64, 63], "manifest"),
    "items": (len(ITEMS) - 1, "structure"),
    "ids": ("string", "structure"),
    "tags": (["t0"], "structure"),
    "fields": ([["title", "int64", False]], "structure"),
    "sections": ([], "structure"),
}


def test_the_table_of_header_fields_is_complete() -> None:
    assert set(HEADER) == set(header_of(GOOD)[0])


@pytest.mark.parametrize("field", HEADER)
def test_any_field_of_the_header_changed_dropped_or_of_another_type(serving: tuple[Fleet, Watcher], field: str) -> None:
    value, reason = HEADER[field]
    data = with_header(lambda header: header.update({field: value}))
    assert refusal(serving, *hashed(data)) == reason
    for broken in (with_header(lambda header: header.pop(field)), with_header(lambda h: h.update({field: 1.5}))):
        assert refusal(serving, *hashed(broken)) == "structure"


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        (PREFIX.pack(b"NOTACAT\0", blob.FORMAT, 10), "format"),
        (PREFIX.pack(blob.MAGIC, blob.FORMAT + 1, 10), "format"),
        (PREFIX.pack(blob.MAGIC, blob.FORMAT, 1 << 40), "structure"),
        (PREFIX.pack(blob.MAGIC, blob.FORMAT, 3), "structure"),
    ],
    ids=["magic", "format", "header too long", "header cut"],
)
def test_the_prefix_damaged(serving: tuple[Fleet, Watcher], prefix: bytes, reason: str) -> None:
    assert refusal(serving, *hashed(prefix + GOOD[PREFIX.size :])) == reason


SECTIONS = [section[0] for section in header_of(GOOD)[0]["sections"]]


@pytest.mark.parametrize("part", ["name", "dtype", "count", "offset"])
@pytest.mark.parametrize("at", range(len(SECTIONS)), ids=SECTIONS)
def test_any_section_misdescribed(serving: tuple[Fleet, Watcher], at: int, part: str) -> None:
    def misdescribe(header: dict[str, Any]) -> None:
        name, dtype, count, offset = header["sections"][at]
        wrong = {"name": "x", "dtype": "<i8" if dtype == "|u1" else "|u1", "count": count + 64, "offset": offset + 64}
        described = {"name": name, "dtype": dtype, "count": count, "offset": offset} | {part: wrong[part]}
        header["sections"][at] = list(described.values())

    assert refusal(serving, *hashed(with_header(misdescribe))) == "structure"


def in_section(name: str, change: Callable[[np.ndarray[Any, Any]], object]) -> bytes:
    header, begin = header_of(GOOD)
    _, dtype, count, offset = next(section for section in header["sections"] if section[0] == name)
    data = bytearray(GOOD)
    change(np.frombuffer(data, dtype=dtype, count=count, offset=begin + offset))
    return bytes(data)


def test_sound_bytes_are_taken_by_the_same_way(server: EmbeddedRedis) -> None:
    """Else the refusals of this file would prove nothing."""
    fleet = Fleet(server)
    manifest, data, version = hashed(GOOD)
    fleet.publisher.upload(Manifest.read(manifest), data)
    pointer = fleet.publisher.activate(version)
    with fleet.watcher():
        eventually(lambda: fleet.store.active == pointer.version)
    fleet.close()


IMPOSSIBLE: dict[str, Callable[[np.ndarray[Any, Any]], object]] = {
    "sids": lambda array: array.put([0, -1], [63, 0]),  # out of order
    "ids": lambda array: array.put(0, array[1]),  # twice
    "rank": lambda array: array.put(0, np.nan),
    "tags/begin": lambda array: array.put(0, 7),
    "tags/items": lambda array: array.put(0, -1),
    "tags/dense": lambda array: array.put(0, 99),
    "tags/bits": lambda array: array.put(-1, 0xFF),  # items past the last one
    "field/0/offsets": lambda array: array.put(1, 1 << 30),
    "field/0/text": lambda array: array.put(0, 0xFF),  # not UTF-8
}
ANYTHING_GOES = {"recallable"}
"""Arrays of which any bytes are a catalog's: only the checksum can tell, and does."""


def test_the_table_of_arrays_is_complete() -> None:
    assert IMPOSSIBLE.keys() | ANYTHING_GOES == set(SECTIONS)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_any_array_with_values_that_cannot_be(serving: tuple[Fleet, Watcher], name: str) -> None:
    assert refusal(serving, *hashed(in_section(name, IMPOSSIBLE[name]))) == "structure"


@pytest.mark.parametrize("name", SECTIONS)
def test_any_array_with_a_flipped_bit(serving: tuple[Fleet, Watcher], name: str) -> None:
    data = in_section(name, lambda array: array.view(np.uint8).put(0, array.view(np.uint8)[0] ^ 1))
    assert data != GOOD
    assert refusal(serving, msgspec.json.encode(MANIFEST), data, MANIFEST.version) == "checksum"
