from pathlib import Path

import numpy as np
import pytest

from catalog_sync import blob
from consumer.demo.films import film_release
from consumer.demo.movielens import DataError, MovieLens, load_movielens
from consumer.demo.run import MODEL
from engine.model.spec import ModelSpec
from tests.consumer.film_files import GENRES, write_film_files

FILMS = 3883


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> MovieLens:
    return load_movielens(write_film_files(tmp_path_factory.mktemp("films"), FILMS, {"a": [1, 2, 3]}))


def test_the_release_fits_the_model_and_holds_every_film(data: MovieLens) -> None:
    release = film_release(data, MODEL, "all films")
    spec = ModelSpec.load(MODEL)
    catalog = blob.decode(release.blob)
    assert catalog.model == release.manifest.model == spec.id
    assert catalog.trie.sizes == tuple(level.size for level in spec.levels)
    assert sorted(np.asarray(catalog.ids).tolist()) == list(range(1, FILMS + 1))
    assert release.live == frozenset(range(1, FILMS + 1))
    assert release.version == blob.version_of(release.blob)


def test_titles_tags_and_years_are_those_of_the_item(data: MovieLens) -> None:
    catalog = blob.decode(film_release(data, MODEL, "all films").blob)
    for index in (0, 100, FILMS - 1):
        item = int(catalog.ids[index])
        assert catalog.fields["title"][index].as_py() == data.title(item)
        assert catalog.fields["year"][index].as_py() == 1950 + item % 50
        tags = {tag for tag, bitmap in catalog.tags.items() if bitmap[index]}
        assert tags == {f"genre:{GENRES[item % 3]}", f"decade:{(1950 + item % 50) // 10 * 10}s"}


def test_withdrawn_films_keep_their_sid_and_are_not_recallable(data: MovieLens) -> None:
    release = film_release(data, MODEL, "fewer", withdrawn=[7, 9])
    catalog = blob.decode(release.blob)
    assert sorted(np.asarray(catalog.ids)[~catalog.recallable].tolist()) == [7, 9]
    assert release.live == frozenset(range(1, FILMS + 1)) - {7, 9}


def test_versions_are_named_by_content(data: MovieLens) -> None:
    versions = [film_release(data, MODEL, label, withdrawn).version for label, withdrawn in (("a", ()), ("b", ()))]
    assert film_release(data, MODEL, "a").version == versions[0] != versions[1]


def test_a_model_of_another_data_set_is_refused(tmp_path: Path) -> None:
    other = load_movielens(write_film_files(tmp_path, 10, {"a": [1, 2]}))
    with pytest.raises(DataError, match="not the same data set"):
        film_release(other, MODEL, "all films")
