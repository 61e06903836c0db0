import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from catalog_sync.residual import Vectors, mini_batch_k_means, residual_sids
from engine.errors import CatalogError


def by_sign(vectors: Vectors, clusters: int) -> tuple[NDArray[np.int32], Vectors]:
    """Two clusters, told by the first axis that still varies: what k-means would find on such data."""
    axis = int(np.abs(vectors).max(axis=0).argmax())
    labels = (vectors[:, axis] > 0).astype(np.int32)
    centres = np.zeros((clusters, vectors.shape[1]), np.float32)
    for label in range(min(2, clusters)):
        if (labels == label).any():
            centres[label] = vectors[labels == label].mean(axis=0)
    return labels, centres


CORNERS = np.array([[x, y, 0] for x in (-8, 8) for y in (-1, 1)], np.float32)


def test_each_level_clusters_what_the_ones_before_leave_over() -> None:
    sids = residual_sids(CORNERS, (2, 2), "shared", by_sign)
    assert sids.codes.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert [round(level.left, 4) for level in sids.levels] == [round(1 / 65, 4), 0.0]
    assert [(level.used, level.largest) for level in sids.levels] == [(2, 0.5)] * 2
    assert [level.balance for level in sids.levels] == pytest.approx([1.0, 1.0])
    assert (sids.distinct, sids.colliding, sids.most) == (4, 0, 1)


def test_items_on_one_sid_stand_by_their_distance_and_an_extra_level_tells_them_apart() -> None:
    beside = CORNERS[0] + np.array([[0, 0, 0.5], [0, 0, -0.1]], np.float32)
    vectors = np.concatenate([CORNERS, beside])
    shared = residual_sids(vectors, (2, 2), "shared", by_sign)
    assert (shared.distinct, shared.colliding, shared.most) == (4, 3, 3)
    assert shared.sizes == (2, 2)
    assert sorted(shared.rank[[0, 4, 5]]) == [0, 1, 2]
    assert shared.rank[4] == 2  # the farthest
    extra = residual_sids(vectors, (2, 2), "extra", by_sign)
    assert extra.sizes == (2, 2, 3)
    assert extra.codes[:, :2].tolist() == shared.codes.tolist()
    assert len(np.unique(extra.codes, axis=0)) == len(vectors)


def test_balance_says_how_evenly_codes_are_used() -> None:
    vectors = np.concatenate([CORNERS[:1]] * 7 + [CORNERS[2:3]]).astype(np.float32)
    [level] = residual_sids(vectors, (4,), "shared", by_sign).levels
    entropy = -(7 / 8 * np.log(7 / 8) + 1 / 8 * np.log(1 / 8))
    assert (level.used, level.largest) == (2, 7 / 8)
    assert level.balance == pytest.approx(np.exp(entropy) / 4)


@given(arrays(np.float32, st.tuples(st.integers(1, 40), st.integers(1, 3)), elements=st.floats(-9, 9, width=32)))
def test_codes_fit_their_levels_and_every_item_has_a_place(vectors: NDArray[np.float32]) -> None:
    sids = residual_sids(vectors, (2, 2), "extra", by_sign)
    assert sids.codes.shape == (len(vectors), 3)
    assert (sids.codes >= 0).all()
    assert (sids.codes < np.array(sids.sizes)).all()
    assert len(np.unique(sids.codes, axis=0)) == len(vectors)


def test_k_means_finds_clusters_that_are_there_and_the_seed_settles_it() -> None:
    random = np.random.default_rng(0)
    centres = random.normal(size=(16, 8)) * 10
    vectors = (centres[np.arange(800) % 16] + random.normal(size=(800, 8)) * 0.1).astype(np.float32)
    one, again = (residual_sids(vectors, (16, 4), "shared", mini_batch_k_means(3)) for _ in range(2))
    assert np.array_equal(one.codes, again.codes)
    for group in range(16):
        assert len(set(one.codes[np.arange(800) % 16 == group, 0])) == 1
    assert one.levels[0].left < 0.5
    assert one.levels[1].left <= one.levels[0].left


def test_fewer_items_than_codes_and_equal_items_are_no_fault() -> None:
    vectors = np.ones((5, 4), np.float32)
    sids = residual_sids(vectors, (8, 8), "extra", mini_batch_k_means(0))
    assert (sids.distinct, sids.colliding, sids.most) == (1, 5, 5)


def test_sizes_that_no_catalog_has_are_an_error() -> None:
    with pytest.raises(CatalogError):
        residual_sids(CORNERS, (0,), "shared", by_sign)
