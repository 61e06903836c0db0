"""A history that has grown finds the items that a fresh look-up finds, and looks for its new ones only."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.catalog.looked_up import LookedUp
from engine.catalog.resident import ResidentCatalog
from engine.errors import RequestError
from engine.request import ItemIds
from tests.engine.catalogs import Item, catalog_of

NUMBERS: Callable[[int], int | str] = int
TEXTS: Callable[[int], int | str] = "item {}".format


class CountingCatalog(ResidentCatalog):
    """Knows how many ids it was asked for."""

    asked = 0

    def lookup(self, ids: ItemIds) -> NDArray[np.int32]:
        self.asked += len(ids)
        return super().lookup(ids)


def catalog_with(kind: Callable[[int], int | str], *numbers: int) -> CountingCatalog:
    items = [Item(kind(number), (number % 8,)) for number in numbers]
    return CountingCatalog(catalog_of(items, (8,)), torch.device("cpu"))


def ids_of(kind: Callable[[int], int | str], *numbers: int) -> ItemIds:
    ids = [kind(number) for number in numbers]
    return np.array(ids, dtype=np.int64) if kind is NUMBERS else [str(each) for each in ids]


@pytest.mark.parametrize("kind", [NUMBERS, TEXTS], ids=["numbers", "texts"])
@pytest.mark.parametrize(
    ("later", "asked"),
    [
        ((5, 9, 2, 1, 2), 2),
        ((5, 9, 2), 0),
        ((5, 9), 0),  # taken back
        ((9, 2, 1), 3),  # the oldest dropped
        ((5, 8, 2, 1), 4),
        ((), 0),
    ],
)
def test_only_what_follows_the_same_beginning_is_looked_up(
    kind: Callable[[int], int | str], later: tuple[int, ...], asked: int
) -> None:
    catalog = catalog_with(kind, 1, 2, 5)
    before = LookedUp.of(ids_of(kind, 5, 9, 2), catalog)
    catalog.asked = 0
    found = LookedUp.of(ids_of(kind, *later), catalog, before)
    assert catalog.asked == asked
    assert found.rows.dtype == np.int32
    assert found.rows.tolist() == catalog.lookup(ids_of(kind, *later)).tolist()


def test_another_catalog_begins_anew_and_the_old_one_is_not_kept() -> None:
    old, new = catalog_with(NUMBERS, 1, 2, 5), catalog_with(NUMBERS, 0, 1, 2, 5)
    before = LookedUp.of(ids_of(NUMBERS, 5, 2), old)
    assert LookedUp.of(ids_of(NUMBERS, 5, 2, 1), new, before).rows.tolist() == [3, 2, 1]
    del old
    assert before.catalog() is None
    assert LookedUp.of(ids_of(NUMBERS, 5, 2, 1), new, before).rows.tolist() == [3, 2, 1]


def test_what_the_caller_writes_into_a_history_afterwards_changes_nothing() -> None:
    catalog = catalog_with(NUMBERS, 1, 2, 5)
    history = np.array([5, 2], dtype=np.int64)
    before = LookedUp.of(history, catalog)
    history[0] = 1
    assert LookedUp.of(history, catalog, before).rows.tolist() == catalog.lookup(history).tolist()


def test_ids_of_the_wrong_kind_are_refused_after_right_ones_too() -> None:
    catalog = catalog_with(NUMBERS, 1, 2, 5)
    before = LookedUp.of(ids_of(NUMBERS, 5, 2), catalog)
    for wrong in (["5", "2"], np.array([5.0, 2.0])):
        with pytest.raises(RequestError):
            LookedUp.of(wrong, catalog, before)
