"""Semantic IDs by residual k-means over what is known of an item before its test events.

An item's vector joins a low-rank factor of the co-occurrence matrix (positive pointwise mutual information of items
that users rated close together, training events only) with its genres and year. A last, small level tells apart the
items that share all codes; its code 0 is the most popular of them.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD

from consumer.demo.movielens import MovieLens

Vectors = NDArray[np.float64]


def cooccurrence_factor(
    histories: Iterable[NDArray[np.int64]], items: int, window: int = 10, rank: int = 64, seed: int = 0
) -> Vectors:
    """Factor ``[items, rank]`` of the PPMI matrix of items within ``window`` events; nearer ones count more."""
    counts = sparse.csr_matrix((items, items), dtype=np.float64)
    rows = [history - 1 for history in histories]
    for lag in range(1, window + 1):
        left = np.concatenate([row[:-lag] for row in rows if len(row) > lag])
        right = np.concatenate([row[lag:] for row in rows if len(row) > lag])
        weight = np.full(len(left), 1.0 / np.sqrt(lag))
        counts += sparse.csr_matrix((weight, (left, right)), shape=(items, items))
    counts = (counts + counts.T).tocoo()
    total = counts.sum()
    frequency = np.asarray(counts.sum(axis=1)).ravel() ** 0.75  # smoothed: plain PPMI overrates rare pairs
    frequency /= frequency.sum()
    pmi = np.log(counts.data / total / (frequency[counts.row] * frequency[counts.col]))
    ppmi = sparse.csr_matrix((np.maximum(pmi, 0.0), (counts.row, counts.col)), shape=(items, items))
    svd = TruncatedSVD(rank, n_iter=7, random_state=seed)
    factor: Vectors = svd.fit_transform(ppmi) / np.sqrt(svd.singular_values_ + 1e-12)
    return factor


def item_vectors(data: MovieLens, seed: int = 0) -> Vectors:
    """``[items, dim]``: unit co-occurrence part, then genres and years at a lower weight."""
    factor = _unit(cooccurrence_factor(data.histories(drop_last=2), data.items, seed=seed))
    names = sorted({genre for genres in data.genres for genre in genres})
    genres = np.array([[name in item for name in names] for item in data.genres], dtype=np.float64)
    decades = np.clip((data.years[:, None] - np.arange(1920, 2001, 10)) / 10.0, 0.0, 1.0)
    return np.hstack([factor, 0.4 * _unit(genres), 0.2 * decades])


def residual_kmeans(vectors: Vectors, sizes: Sequence[int], seed: int = 0) -> NDArray[np.int32]:
    """Codes ``[items, len(sizes)]``: each level clusters what the levels before it left over."""
    residual = vectors.copy()
    codes = np.empty((len(vectors), len(sizes)), dtype=np.int32)
    for level, size in enumerate(sizes):
        kmeans = KMeans(size, n_init=4, random_state=seed + level).fit(residual)
        codes[:, level] = kmeans.labels_
        residual -= kmeans.cluster_centers_[kmeans.labels_]
    return codes


def tell_apart(codes: NDArray[np.int32], popularity: NDArray[np.int64]) -> NDArray[np.int32]:
    """Append a level that numbers the items of each SID, most popular first: ``[items, levels + 1]``, rows distinct."""
    order = np.lexsort((-popularity, *codes.T[::-1]))
    ordered = codes[order]
    first = np.concatenate(([True], (ordered[1:] != ordered[:-1]).any(axis=1)))
    start = np.maximum.accumulate(np.where(first, np.arange(len(codes)), 0))
    number = np.empty(len(codes), dtype=np.int32)
    number[order] = np.arange(len(codes)) - start
    return np.hstack([codes, number[:, None]])


def _unit(rows: Vectors) -> Vectors:
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norm > 0, norm, 1.0)
