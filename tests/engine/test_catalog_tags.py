import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.catalog.tags import TagIndex

Bitmaps = dict[str, NDArray[np.bool_]]


@st.composite
def bitmaps(draw: st.DrawFn) -> Bitmaps:
    """Tags that none, a few or many of up to 300 items hold, around the share from which on a tag has a bitmap."""
    size = draw(st.integers(1, 300))
    random = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True))
    shares = draw(st.lists(st.sampled_from([0.0, 0.01, 0.03, 0.05, 0.5, 1.0]), min_size=6, max_size=6))
    return {name: random.random(size) < share for name, share in zip(names, shares, strict=False)} | {
        "all": np.ones(size, dtype=np.bool_)
    }


def size_of(tags: Bitmaps) -> int:
    return len(tags["all"])


def index_of(tags: Bitmaps) -> TagIndex:
    return TagIndex.of(tags, size_of(tags))


def assert_equal(left: TagIndex, right: TagIndex) -> None:
    assert (left.names, left.size) == (right.names, right.size)
    for name in ("begin", "items_flat", "dense", "bits"):
        assert np.array_equal(getattr(left, name), getattr(right, name)), name
        assert getattr(left, name).dtype == getattr(right, name).dtype


@settings(deadline=None)
@given(bitmaps())
def test_an_index_says_of_every_tag_who_holds_it(tags: Bitmaps) -> None:
    index = index_of(tags)
    assert list(index) == sorted(name for name, holders in tags.items() if holders.any())
    every = np.arange(size_of(tags))
    for name, holders in tags.items():
        assert np.array_equal(index.bitmap(name), holders)
        assert np.array_equal(index.items_of(name), np.flatnonzero(holders))
        assert np.array_equal(index.held_by(name, every), holders)
        assert (index.row_of(name) is not None) is bool(holders.sum() * 32 > len(holders))
    assert not index.bitmap("absent").any()
    assert not index.held_by("absent", every).any()


@settings(deadline=None)
@given(bitmaps(), st.integers(0, 1 << 16))
def test_pairs_in_any_order_with_repeats_make_the_same_index(tags: Bitmaps, seed: int) -> None:
    random = np.random.default_rng(seed)
    names = list(tags)
    random.shuffle(names)
    tag, item = np.nonzero(np.stack([tags[name] for name in names]))
    picked = np.concatenate([random.permutation(len(tag)), random.integers(0, len(tag), len(tag))])
    assert_equal(TagIndex.from_pairs(names, tag[picked], item[picked], size_of(tags)), index_of(tags))


@settings(deadline=None)
@given(bitmaps(), st.integers(0, 1 << 16))
def test_some_items_in_another_order_are_as_if_indexed_anew(tags: Bitmaps, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = random.permutation(size_of(tags))[: random.integers(1, size_of(tags) + 1)]
    assert_equal(index_of(tags).take(rows), index_of({name: holders[rows] for name, holders in tags.items()}))


@settings(deadline=None)
@given(bitmaps(), bitmaps())
def test_joined_indexes_are_as_if_indexed_anew(left: Bitmaps, right: Bitmaps) -> None:
    def of(tags: Bitmaps, name: str) -> NDArray[np.bool_]:
        return tags.get(name, np.zeros(size_of(tags), dtype=np.bool_))

    both = {name: np.concatenate([of(left, name), of(right, name)]) for name in {*left, *right}}
    assert_equal(index_of(left).joined(index_of(right)), index_of(both))


def test_a_tag_that_nobody_holds_is_no_key() -> None:
    index = TagIndex.of({"none": np.zeros(3, np.bool_)}, 3)
    assert len(index) == 0
    with pytest.raises(KeyError):
        index["none"]
