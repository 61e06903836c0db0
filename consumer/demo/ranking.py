"""Leave-last-out measures and the baseline that any recall model has to beat."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

IdArray = NDArray[np.int64]


def popularity_order(histories: Iterable[IdArray], items: int) -> IdArray:
    """Item ids ``1 .. items``, the most frequent in ``histories`` first (ties: the lower id)."""
    counts = np.zeros(items + 1, dtype=np.int64)
    for history in histories:
        np.add.at(counts, history, 1)
    return np.argsort(-counts[1:], kind="stable") + 1


def most_popular(order: IdArray, exclude: IdArray, k: int) -> IdArray:
    """The first ``k`` ids of ``order`` that are not in ``exclude``."""
    head = order[: k + len(exclude)]
    return head[~np.isin(head, exclude)][:k]


def hit_rate_and_ndcg(ranked: Sequence[IdArray], targets: Sequence[int], k: int = 10) -> tuple[float, float]:
    """HR@k and NDCG@k with one relevant item a row; rows of ``ranked`` are best first and may be short."""
    if not targets:
        raise ValueError("no rows to measure")
    gains = []
    for row, target in zip(ranked, targets, strict=True):
        place = np.flatnonzero(row[:k] == target)
        gains.append(1.0 / np.log2(place[0] + 2) if len(place) else 0.0)
    return float(np.count_nonzero(gains) / len(gains)), float(np.mean(gains))
