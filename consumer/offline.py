"""Recall for the rows of a table, with the checks, defaults and engine of the stream."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from consumer.wire.outgoing import RequestOptions, encode_request
from consumer.wire.request import decode_whole
from consumer.wire.resolve import Resolver
from consumer.wire.settings import RecallDefaults, WireLimits
from engine.catalog.catalog import Catalog
from engine.errors import RecallstreamError, RequestError
from engine.request import RecallRequest, RecallResult

CHUNK_ROWS = 1024

ID_COLUMNS = ("history", "exclude", "tokens")
REQUEST_COLUMNS = frozenset(RequestOptions.__annotations__) - {
    "append",
    "deadline_ms",
    "labels",
    "priority",
    "return_sids",
    "return_fields",
}
"""Columns that mean what the request's field of that name means; a null takes the default."""

Answer = RecallResult | RequestError
Advance = Callable[[int], None]
"""Called with the rows done since its last call."""


class TableError(RecallstreamError):
    """The input cannot be read, or is no table of requests."""


class Engine(Protocol):
    """What a ``RecallEngine`` is asked."""

    def recall(self, requests: Sequence[RecallRequest]) -> list[Answer]: ...


class OfflineRecall:
    """Reads rows, asks the engine in batches of ``max_batch`` and gives tables of answers.

    ``levels``: SID levels of the model. ``return_sids`` and ``return_fields`` hold for every row.
    """

    def __init__(
        self,
        engine: Engine,
        levels: int,
        max_batch: int,
        defaults: RecallDefaults,
        limits: WireLimits,
        return_sids: bool = False,
        return_fields: Sequence[str] = (),
    ) -> None:
        self._engine = engine
        self._max_batch = max_batch
        self._resolver = Resolver(defaults, levels)
        self._limits = limits
        self._returned: RequestOptions = {"return_sids": return_sids, "return_fields": tuple(return_fields)}

    def answer(self, rows: pa.RecordBatch, advance: Advance) -> list[Answer]:
        """One answer a row, in order; a bad row's is its error."""
        requests = [self._request(options) for options in _rows(rows)]
        good = [request for request in requests if isinstance(request, RecallRequest)]
        advance(len(requests) - len(good))
        answers: list[Answer] = []
        for begin in range(0, len(good), self._max_batch):
            batch = good[begin : begin + self._max_batch]
            answers += self._engine.recall(batch)
            advance(len(batch))
        found = iter(answers)
        return [next(found) if isinstance(request, RecallRequest) else request for request in requests]

    def _request(self, options: RequestOptions) -> RecallRequest | RequestError:
        try:
            value = encode_request("row", {**options, **self._returned})
            return self._resolver.resolve(decode_whole(value, self._limits))
        except RequestError as error:
            return error
        except (TypeError, OverflowError, ValueError) as error:
            return RequestError("bad_request", str(error))


def recall_file(
    recall: OfflineRecall, source: Path, target: Path, schema: pa.Schema, advance: Advance
) -> tuple[int, int]:
    """Answer every row of ``source`` into ``target``. Returns the rows and how many of them have an error.

    ``target`` appears when it is complete. Raises TableError.
    """
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    total = failed = 0
    try:
        with open_input(source) as table, pq.ParquetWriter(partial, schema) as writer:
            for rows in table.iter_batches(CHUNK_ROWS, columns=input_columns(table)):
                answers = recall.answer(rows, advance)
                writer.write_table(answer_table(rows, answers, schema))
                total += len(answers)
                failed += sum(isinstance(answer, RequestError) for answer in answers)
        partial.replace(target)
    except pa.ArrowException as error:
        raise TableError(f"{source}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return total, failed


def open_input(path: Path) -> pq.ParquetFile:
    """Raises TableError if it is no Parquet file with a column of histories or prompts."""
    try:
        table = pq.ParquetFile(path)
    except OSError as error:
        raise TableError(f"{path}: {error.strerror or error}") from error
    except pa.ArrowException as error:
        raise TableError(f"{path}: {error}") from error
    names = table.schema_arrow.names
    if "history" not in names and "tokens" not in names:
        raise TableError(f"{path}: has no column history (and none called tokens), but {', '.join(names) or 'none'}")
    return table


def input_columns(table: pq.ParquetFile) -> list[str]:
    """Those that are read; others are left alone."""
    return [name for name in table.schema_arrow.names if name in REQUEST_COLUMNS]


def answer_schema(rows: pa.Schema, catalog: Catalog, return_sids: bool, return_fields: Sequence[str]) -> pa.Schema:
    """Columns of the output: ``user_id`` as it came, lists best first, and ``error`` (null for a good row).

    Raises TableError for a field that the catalog does not have.
    """
    if unknown := [name for name in return_fields if name not in catalog.fields]:
        raise TableError(f"the catalog has no field {unknown[0]}; it has {', '.join(catalog.fields) or 'none'}")
    id_type = pa.int64() if isinstance(catalog.ids, np.ndarray) else pa.string()
    columns = [rows.field("user_id")] if "user_id" in rows.names else []
    columns += [pa.field("items", pa.list_(id_type)), pa.field("scores", pa.list_(pa.float32()))]
    if return_sids:
        columns.append(pa.field("sids", pa.list_(pa.list_(pa.int32()))))
    if return_fields:
        fields = [pa.field(name, pa.list_(catalog.fields[name].type)) for name in return_fields]
        columns.append(pa.field("fields", pa.struct(fields)))
    columns += [pa.field(name, pa.bool_()) for name in ("exhausted", "truncated")]
    columns += [pa.field("unknown_items", pa.int32()), pa.field("error", pa.string())]
    return pa.schema(columns, metadata={"recallstream.model": catalog.model, "recallstream.catalog": catalog.version})


def answer_table(rows: pa.RecordBatch, answers: Sequence[Answer], schema: pa.Schema) -> pa.Table:
    """``answers`` to ``rows`` in the columns of ``schema``."""

    def column(field: pa.Field) -> pa.Array:
        if field.name == "user_id":
            return rows.column("user_id")
        if field.name == "error":
            values = [f"{a.code}: {a.message}" if isinstance(a, RequestError) else None for a in answers]
        else:
            values = [None if isinstance(a, RequestError) else _plain(getattr(a, field.name)) for a in answers]
        return pa.array(values, field.type)

    return pa.Table.from_arrays([column(field) for field in schema], schema=schema)


def _rows(rows: pa.RecordBatch) -> Iterator[RequestOptions]:
    for row in range(rows.num_rows):
        options: dict[str, Any] = {}
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if not column[row].is_valid:
                continue
            if name in ID_COLUMNS:
                options[name] = _ids(column[row].values)
            elif name == "user_id":
                options[name] = str(column[row].as_py())
            else:
                options[name] = _without_nulls(column[row].as_py(maps_as_pydicts="strict"))
        yield cast(RequestOptions, options)


def _ids(values: pa.Array) -> Any:
    if pa.types.is_integer(values.type) and not values.null_count:
        return values.to_numpy()
    return values.to_pylist()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None}
    return value


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) and value.ndim > 1 else value
