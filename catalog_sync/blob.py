"""The binary form of a catalog or of a delta: magic, format version, header (msgpack), aligned little-endian arrays.

A catalog holds no trie: it follows from the sorted SIDs, which are a third as large.

The name of a version is derived from these bytes, so equal catalogs have equal names wherever they are built.
"""

import hashlib
import os
import struct
from pathlib import Path
from typing import Literal

import msgpack
import msgspec
import numpy as np

from catalog_sync.columns import Array, ColumnType, column_sections, column_type, read_column
from catalog_sync.verify import verify_delta, verify_structure
from engine.catalog.bits import pack_bits, unpack_bits
from engine.catalog.build import MAX_ITEMS, check_sizes
from engine.catalog.catalog import Catalog, Ids, sid_dtype
from engine.catalog.delta import Delta
from engine.catalog.tags import TagIndex
from engine.errors import CatalogError

MAGIC = b"RSCATLG\x00"
FORMAT = 2
_PREFIX = struct.Struct("<8sIQ")  # magic, format, bytes of the header
_ALIGNMENT = 64
_MAX_HEADER = 256 << 20
_VERSION_DIGITS = 16

Bytes = bytes | bytearray | memoryview


class _SectionSpec(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    name: str
    dtype: Literal["<u2", "<i4", "<i8", "<f8", "|u1"]
    count: int
    offset: int  # from the end of the header, aligned


class _FieldSpec(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    name: str
    type: ColumnType
    nullable: bool


class _Header(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    model: str
    sizes: list[int]
    items: int
    ids: Literal["int64", "string"]
    tags: list[str]
    fields: list[_FieldSpec]
    sections: list[_SectionSpec]
    parent: str | None = None  # of a delta
    withdrawn: int = 0


def encode(version: Catalog | Delta) -> bytearray:
    """The bytes of a catalog or a delta; its ``version`` is not among them. Raises CatalogError ``structure``."""
    catalog = version.upserts if isinstance(version, Delta) else version
    arrays = _sections(catalog)
    if isinstance(version, Delta):
        arrays |= _id_sections("withdrawn", version.withdrawn)
    specs, end = [], 0
    for name, array in arrays.items():
        specs.append(_SectionSpec(name, array.dtype.str, array.size, end))  # type: ignore[arg-type]  # checked on read
        end = _align(end + array.nbytes)
    header = _Header(
        model=catalog.model,
        sizes=list(catalog.sizes),
        items=catalog.items,
        ids="int64" if isinstance(catalog.ids, np.ndarray) else "string",
        tags=list(catalog.tags.names),
        fields=[_FieldSpec(k, column_type(v), bool(v.null_count)) for k, v in sorted(catalog.fields.items())],
        sections=specs,
        parent=version.parent if isinstance(version, Delta) else None,
        withdrawn=len(version.withdrawn) if isinstance(version, Delta) else 0,
    )
    packed = msgpack.packb(msgspec.to_builtins(header))
    begin = _align(_PREFIX.size + len(packed))
    blob = bytearray(begin + end)
    _PREFIX.pack_into(blob, 0, MAGIC, FORMAT, len(packed))
    blob[_PREFIX.size : _PREFIX.size + len(packed)] = packed
    for spec, array in zip(specs, arrays.values(), strict=True):
        target = np.frombuffer(blob, dtype=array.dtype, count=array.size, offset=begin + spec.offset)
        target[:] = array.ravel()
    return blob


def version_of(blob: Bytes) -> str:
    """The version name of a blob: the first digits of its SHA-256."""
    return version_of_digest(hashlib.sha256(blob).hexdigest())


def version_of_digest(sha256: str) -> str:
    """The version name of a blob whose SHA-256 is known, in hex."""
    return sha256[:_VERSION_DIGITS]


def decode(blob: Bytes, version: str | None = None) -> Catalog:
    """The catalog of untrusted bytes; its arrays are read-only views of ``blob``, which must not change any more.

    ``version``: the name, if the caller has hashed the bytes already. Raises CatalogError: ``format`` (not a catalog,
    or of an unknown format) or ``structure`` (sizes, ranges, order, uniqueness; a delta).
    """
    catalog = decode_version(blob, version)
    if isinstance(catalog, Delta):
        raise CatalogError("structure", f"this is a delta, which changes version {catalog.parent}")
    return catalog


def decode_version(blob: Bytes, version: str | None = None) -> Catalog | Delta:
    """As ``decode``, for the bytes of a catalog or a delta."""
    view = memoryview(blob).toreadonly().cast("B")
    header, begin = _read_header(view)
    reader = _Reader(view[begin:], header.sections)
    sizes = check_sizes(header.sizes)
    least = 1 if header.parent is None else 0
    if not least <= header.items <= MAX_ITEMS or not 0 <= header.withdrawn <= MAX_ITEMS:
        raise CatalogError("structure", f"{header.items} items")
    catalog = Catalog(
        version or version_of(view) if header.parent is None else "",
        header.model,
        sizes,
        sids=reader.section("sids", np.dtype(sid_dtype(sizes)).str, header.items * len(sizes)).reshape(-1, len(sizes)),
        ids=_read_ids("ids", header.ids, header.items, reader),
        recallable=unpack_bits(reader.section("recallable", "|u1", -(-header.items // 8)), header.items),
        rank=reader.section("rank", "<f8", header.items) if "rank" in reader else None,
        tags=_read_tags(header, reader),
        fields={
            field.name: read_column(f"field/{at}", field.type, header.items, field.nullable, reader.section)
            for at, field in enumerate(header.fields)
        },
    )
    if len(catalog.fields) != len(header.fields):
        raise CatalogError("structure", "two fields have the same name")
    withdrawn = _read_ids("withdrawn", header.ids, header.withdrawn, reader) if header.parent is not None else None
    reader.close()
    verify_structure(catalog)
    if withdrawn is None or header.parent is None:
        return catalog
    delta = Delta(version or version_of(view), header.parent, catalog, withdrawn)
    verify_delta(delta)
    return delta


def write_file(path: Path, blob: Bytes) -> None:
    """Write a blob so that ``path`` holds all of it or what it held before."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_file(path: Path) -> bytes:
    """The bytes of a catalog file. Raises CatalogError ``source``."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CatalogError("source", f"{path}: {error.strerror or error}") from error


def parent_of_file(path: Path) -> str | None:
    """What the delta in a file changes; none for a catalog, and for a file that is absent or makes no sense."""
    try:
        with path.open("rb") as file:
            front = file.read(_PREFIX.size)
            length = _PREFIX.unpack(front)[2] if len(front) == _PREFIX.size else 0
            rest = file.read(_align(_PREFIX.size + length) - _PREFIX.size) if length <= _MAX_HEADER else b""
        return _read_header(memoryview(front + rest))[0].parent
    except (OSError, CatalogError):
        return None


class _Reader:
    """Sections of a blob's body, which must lie in order, aligned, without gap, overlap or rest."""

    def __init__(self, body: memoryview, specs: list[_SectionSpec]) -> None:
        self._body = body
        self._specs = {spec.name: spec for spec in specs}
        self._unread = set(self._specs)
        if len(self._specs) != len(specs):
            raise CatalogError("structure", "two sections have the same name")
        end = 0
        for spec in specs:
            if spec.offset != end or not 0 <= spec.count <= len(body):
                raise CatalogError("structure", f"section {spec.name!r} is not where the one before it ends")
            end = _align(end + spec.count * np.dtype(spec.dtype).itemsize)
        if end != len(body):
            raise CatalogError("structure", f"the arrays take {end} bytes, there are {len(body)}")

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def section(self, name: str, dtype: str, count: int | None = None) -> Array:
        spec = self._specs.get(name)
        if spec is None or spec.dtype != dtype or (count is not None and spec.count != count):
            raise CatalogError("structure", f"section {name!r} is missing or not {count or ''} {dtype}")
        self._unread.discard(name)
        return np.frombuffer(self._body, dtype=dtype, count=spec.count, offset=spec.offset)

    def close(self) -> None:
        if self._unread:
            raise CatalogError("structure", f"section {min(self._unread)!r} belongs to nothing")


def _read_header(view: memoryview) -> tuple[_Header, int]:
    if len(view) < _PREFIX.size:
        raise CatalogError("format", "too short to be a catalog")
    magic, version, length = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise CatalogError("format", "these bytes are not a catalog")
    if version != FORMAT:
        raise CatalogError("format", f"catalog format {version}, this program reads format {FORMAT}")
    begin = _align(_PREFIX.size + length)
    if length > _MAX_HEADER or begin > len(view):
        raise CatalogError("structure", "the header is longer than the file")
    try:
        raw = msgpack.unpackb(view[_PREFIX.size : _PREFIX.size + length])
        return msgspec.convert(raw, _Header), begin
    except (ValueError, RecursionError) as error:  # msgpack's and msgspec's errors are ValueErrors
        raise CatalogError("structure", f"unreadable header: {error}") from error


def _sections(catalog: Catalog) -> dict[str, Array]:
    sections: dict[str, Array] = {"sids": catalog.sids}
    sections |= _id_sections("ids", catalog.ids)
    sections["recallable"] = pack_bits(catalog.recallable)
    if catalog.rank is not None:
        sections["rank"] = catalog.rank
    sections["tags/begin"] = catalog.tags.begin
    sections["tags/items"] = catalog.tags.items_flat
    sections["tags/dense"] = catalog.tags.dense
    sections["tags/bits"] = catalog.tags.bits
    for at, (_, column) in enumerate(sorted(catalog.fields.items())):
        sections |= column_sections(f"field/{at}", column)
    return sections


def _id_sections(name: str, ids: Ids) -> dict[str, Array]:
    return {name: ids} if isinstance(ids, np.ndarray) else column_sections(name, ids)


def _read_ids(name: str, kind: str, count: int, reader: _Reader) -> Ids:
    if kind == "int64":
        return reader.section(name, "<i8", count)
    return read_column(name, "string", count, False, reader.section)


def _read_tags(header: _Header, reader: _Reader) -> TagIndex:
    begin = reader.section("tags/begin", "<i8", len(header.tags) + 1)
    dense = reader.section("tags/dense", "<i4")
    row = -(-header.items // 8)
    bits = reader.section("tags/bits", "|u1", len(dense) * row).reshape(len(dense), row)
    return TagIndex(tuple(header.tags), begin, reader.section("tags/items", "<i4"), dense, bits, header.items)


def _align(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
