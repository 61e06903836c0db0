import numpy as np
import pytest

from benchmarks.recall.dataset import IGNORE, Dataset
from benchmarks.recall.prepare import sid_json
from consumer.demo.run import MODEL
from engine.model.spec import ModelSpec
from engine.runtime.prompts import PromptBuilder

semantic_ids = pytest.importorskip("benchmarks.recall.semantic_ids", exc_type=ImportError)


def dataset(lengths: list[int], max_history: int = 200, history_drop: int = 50) -> Dataset:
    """Users whose events are all different items: 0, 1, 2, ..."""
    items = sum(lengths)
    codes = np.stack([np.arange(items) // 64, np.arange(items) % 64], axis=1)
    return Dataset(
        events=np.arange(items),
        begin=np.concatenate(([0], np.cumsum(lengths))),
        tokens=codes + np.array([2, 2 + 64]),
        bases=(2, 66),
        sizes=(64, 64),
        bos=1,
        max_history=max_history,
        history_drop=history_drop,
    )


def test_items_of_one_sid_are_numbered_the_most_popular_first() -> None:
    codes = np.array([[1, 2], [0, 5], [1, 2], [1, 2], [0, 4]], dtype=np.int32)
    popularity = np.array([3, 1, 9, 5, 0])
    assert semantic_ids.tell_apart(codes, popularity)[:, 2].tolist() == [2, 0, 0, 1, 0]


def test_sids_are_distinct_and_in_range_even_if_items_are_alike() -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(60, 4)).round(0)
    codes = semantic_ids.residual_kmeans(vectors, [8, 4])
    sids = semantic_ids.tell_apart(codes, rng.integers(0, 9, 60))
    assert len(np.unique(sids, axis=0)) == 60
    assert codes[:, 0].max() < 8
    assert codes[:, 1].max() < 4


def test_token_ranges_of_the_levels_do_not_meet() -> None:
    levels = sid_json([256, 256, 64])["levels"]
    assert levels == [
        {"token_base": 2, "size": 256},
        {"token_base": 258, "size": 256},
        {"token_base": 514, "size": 64},
    ]


def test_every_training_event_is_a_target_once_and_no_other_event_is() -> None:
    data = dataset([5, 30, 83], max_history=20)
    targets = []
    for inputs, labels in data.training_batches(np.random.default_rng(0), budget=200):
        assert (inputs[:, 0] == data.bos).all()
        assert ((labels != IGNORE).sum(axis=1) <= 20 * 2).all()
        first, second = labels[:, 0::2], labels[:, 1::2]
        known = first != IGNORE
        targets += ((first[known] - 2) * 64 + second[known] - 66).tolist()
    training = [item for user in range(data.users) for item in range(data.begin[user], data.begin[user + 1] - 2)]
    assert sorted(targets) == training


@pytest.mark.parametrize("events", [1, 199, 200, 201, 250, 251, 317])
def test_a_history_is_cut_as_the_service_cuts_it(events: int) -> None:
    spec = ModelSpec.load(MODEL)
    data = dataset([events + 1], spec.max_history_items, spec.history_drop)
    used = data.history(0, drop_last=1)
    assert used[-1] == events - 1
    assert 1 + len(used) * len(spec.levels) == PromptBuilder(spec).upper_bound("default", events)
