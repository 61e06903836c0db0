import math

import numpy as np
import pytest

from consumer.demo.ranking import hit_rate_and_ndcg, most_popular, popularity_order


def ids(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def test_popularity_counts_every_event_and_breaks_ties_by_id() -> None:
    order = popularity_order([ids(3, 3, 1), ids(3, 4), ids(4)], items=5)
    assert order.tolist() == [3, 4, 1, 2, 5]


def test_the_popular_list_skips_what_is_excluded_and_is_refilled() -> None:
    order = ids(3, 4, 1, 2, 5)
    assert most_popular(order, ids(4, 3), 2).tolist() == [1, 2]
    assert most_popular(order, ids(), 2).tolist() == [3, 4]
    assert most_popular(order, ids(1, 2, 3, 4), 3).tolist() == [5]


def test_hit_rate_and_ndcg_by_hand() -> None:
    ranked = [ids(7, 8, 9), ids(7, 8, 9), ids(7, 8, 9), ids()]
    hit, ndcg = hit_rate_and_ndcg(ranked, [7, 9, 1, 7], k=3)
    assert hit == 0.5
    assert ndcg == pytest.approx((1.0 + 1.0 / math.log2(4)) / 4)


def test_a_hit_below_k_does_not_count() -> None:
    assert hit_rate_and_ndcg([ids(5, 6)], [6], k=1) == (0.0, 0.0)


def test_nothing_to_measure_is_an_error() -> None:
    with pytest.raises(ValueError, match="no rows"):
        hit_rate_and_ndcg([], [])
