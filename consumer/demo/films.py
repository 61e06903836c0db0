"""The demo's catalog: the model's item table joined with titles, years and genres that are read at run time."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from catalog_sync import blob
from catalog_sync.layout import Manifest
from consumer.demo.movielens import DataError, MovieLens
from engine.catalog.build import build_catalog
from engine.model.spec import ModelSpec

ITEMS = "items.parquet"


@dataclass(frozen=True, slots=True)
class Release:
    """A version ready to publish; ``live``: the ids that it may recall."""

    manifest: Manifest
    blob: bytearray
    live: frozenset[int]

    @property
    def version(self) -> str:
        return self.manifest.version


def film_release(data: MovieLens, model: Path, label: str, withdrawn: Collection[int] = ()) -> Release:
    """The films as a catalog version, named by its content. ``withdrawn`` ids keep their SID and are not recallable.

    Tags are ``genre:Comedy`` and ``decade:1990s``; fields ``title``, ``year``, ``genres`` and ``edition`` (the label).
    Raises DataError if the model's item table is not there or is about other data.
    """
    try:
        table = pq.read_table(model / ITEMS)
    except OSError as error:
        raise DataError(f"{model / ITEMS}: {error.strerror or 'no such file'}") from error
    ids = table["item_id"].to_numpy().astype(np.int64)
    if not np.array_equal(np.sort(ids), np.arange(1, data.items + 1)):
        raise DataError(f"{model / ITEMS} has other items than the data, which has {data.items}: not the same data set")
    spec = ModelSpec.load(model)
    row = ids - 1
    years = data.years[row].astype(np.int64)
    recallable = ~np.isin(ids, np.array(sorted(withdrawn), dtype=np.int64))
    catalog = build_catalog(
        version="",
        model=spec.id,
        sizes=[level.size for level in spec.levels],
        ids=ids,
        sids=np.array(table["sid"].to_pylist(), dtype=np.int32),
        recallable=recallable,
        tags={
            **{f"genre:{genre}": has[row] for genre, has in _genre_bitmaps(data).items()},
            **{f"decade:{decade}s": years // 10 * 10 == decade for decade in np.unique(years // 10 * 10)},
        },
        fields={
            "title": pa.array([data.title(item) for item in ids.tolist()]),
            "year": pa.array(years),
            "genres": pa.array([list(data.genres[i]) for i in row], pa.list_(pa.string())),
            "edition": pa.array([label] * len(ids)),
        },
    )
    encoded = blob.encode(catalog)
    manifest = Manifest.of(blob.decode(encoded), encoded, label)
    return Release(manifest, encoded, frozenset(ids[recallable].tolist()))


def _genre_bitmaps(data: MovieLens) -> dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    names = sorted({genre for genres in data.genres for genre in genres})
    return {name: np.array([name in genres for genres in data.genres], dtype=np.bool_) for name in names}
