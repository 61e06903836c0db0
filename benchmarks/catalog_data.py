"""Item tables of any size: uniform SIDs, or skewed ones like those of published SID tables."""

from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

SidShape = Literal["uniform", "skewed"]
SID_SHAPES: tuple[SidShape, ...] = get_args(SidShape)
TAGS = tuple(f"genre-{number:02}" for number in range(16))
TAGS_OF_AN_ITEM = 2


def random_sids(items: int, sizes: tuple[int, ...], shape: SidShape, random: np.random.Generator) -> NDArray[np.int32]:
    """``[items, levels]``. Skewed: few first codes, of which some have many items, and many items on one SID."""
    sids = np.empty((items, len(sizes)), dtype=np.int32)
    for level, size in enumerate(sizes):
        if shape == "uniform":
            sids[:, level] = random.integers(0, size, items, dtype=np.int32)
        else:
            used = min(size, 256) if level == 0 else size
            sids[:, level] = used * random.random(items, dtype=np.float32) ** (2 + level)
    return sids


def string_ids(numbers: NDArray[np.int64]) -> pa.Array:
    """Ids of 13 characters."""
    digits = pa.array(numbers).cast(pa.string())
    return pc.binary_join_element_wise("B", pc.utf8_lpad(digits, 12, "0"), "")


def write_table(
    path: Path, items: int, sizes: tuple[int, ...], shape: SidShape, *, strings: bool = False, seed: int = 0
) -> None:
    """A Parquet table of ids (in any order), SIDs and two of 16 tags an item; string ids come with a title each."""
    random = np.random.default_rng(seed)
    numbers = random.permutation(items)
    held = random.integers(0, len(TAGS), items * TAGS_OF_AN_ITEM, dtype=np.int8)
    tags = pa.DictionaryArray.from_arrays(held, pa.array(TAGS)).dictionary_decode()
    columns = {
        "item_id": string_ids(numbers) if strings else pa.array(numbers),
        "sid": _lists(pa.array(random_sids(items, sizes, shape, random).ravel()), len(sizes)),
        "tags": _lists(tags, TAGS_OF_AN_ITEM),
    }
    if strings:
        columns["title"] = pc.binary_join_element_wise("Title of item", columns["item_id"], " ")
    pq.write_table(pa.table(columns), path)


def _lists(values: pa.Array, length: int) -> pa.Array:
    begins = np.arange(0, len(values) + 1, length, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(begins), values)
