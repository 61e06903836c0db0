"""Semantic IDs by residual k-means: each level clusters what the levels before it leave over."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engine.catalog.build import check_sizes
from engine.errors import CatalogError

Vectors = NDArray[np.float32]
Cluster = Callable[[Vectors, int], tuple[NDArray[np.int32], Vectors]]
"""Vectors ``[n, d]`` and a number of clusters; a label for each vector, and the centres ``[clusters, d]``."""

Collisions = Literal["extra", "shared"]


@dataclass(frozen=True, slots=True)
class LevelFigures:
    """How one level turned out.

    ``balance``: the perplexity of its codes over the codebook's size, 1 if all are used equally; ``largest``: share of
    the items on the commonest code; ``left``: share of the embeddings' variance that is left after this level.
    """

    size: int
    used: int
    balance: float
    largest: float
    left: float


@dataclass(frozen=True, slots=True)
class Sids:
    """``codes``: int32 ``[n, levels]``; ``rank``: int32 ``[n]``, an item's place among those on its SID, best first.

    ``levels``: figures of the clustered levels. ``distinct`` SIDs, before collisions are told apart; ``colliding``
    items that are not alone on theirs; ``most`` items on one.
    """

    codes: NDArray[np.int32]
    rank: NDArray[np.int32]
    sizes: tuple[int, ...]
    levels: tuple[LevelFigures, ...]
    distinct: int
    colliding: int
    most: int


def residual_sids(vectors: Vectors, sizes: Sequence[int], collisions: Collisions, cluster: Cluster) -> Sids:
    """SIDs of items. With ``extra`` collisions, one more level of as many codes as items share one SID at most.

    Items on one SID stand by their distance to what the SID stands for, the nearest first. Raises CatalogError
    ``structure`` for sizes that no catalog can have.
    """
    check_sizes(sizes)
    rest = vectors - vectors.mean(axis=0)
    whole = float(np.square(rest, dtype=np.float64).sum()) or 1.0
    columns, levels = [], []
    for size in sizes:
        labels, centres = cluster(rest, min(size, len(rest)))
        rest = rest - centres[labels]
        columns.append(labels)
        levels.append(_figures(labels, size, float(np.square(rest, dtype=np.float64).sum()) / whole))
    codes = np.stack(columns, axis=1).astype(np.int32)
    rank, counts = _ranks(codes, np.linalg.norm(rest, axis=1))
    most = int(counts.max())
    distinct, colliding = len(counts), int(counts[counts > 1].sum())
    all_sizes = tuple(sizes)
    if collisions == "extra":
        codes, all_sizes = np.column_stack([codes, rank]), (*all_sizes, most)
        if len(np.unique(codes, axis=0)) != len(codes):
            raise CatalogError("structure", "two items have one SID though collisions are told apart")
        check_sizes(all_sizes)
    return Sids(codes, rank, all_sizes, tuple(levels), distinct, colliding, most)


def mini_batch_k_means(seed: int) -> Cluster:
    """scikit-learn's. Raises CatalogError ``missing`` if it is not installed."""
    try:
        from sklearn.cluster import MiniBatchKMeans
        from sklearn.exceptions import ConvergenceWarning
    except ModuleNotFoundError as error:
        raise CatalogError("missing", f"needs {error.name}: pip install 'recallstream[sids]'") from error

    import warnings

    def cluster(vectors: Vectors, clusters: int) -> tuple[NDArray[np.int32], Vectors]:
        model = MiniBatchKMeans(clusters, random_state=seed, batch_size=max(4096, 4 * clusters), n_init=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct vectors: the figures say so
            labels = model.fit_predict(vectors)
        return labels.astype(np.int32), model.cluster_centers_.astype(np.float32)

    return cluster


def _figures(labels: NDArray[np.int32], size: int, left: float) -> LevelFigures:
    counts = np.bincount(labels, minlength=size)
    shares = counts[counts > 0] / len(labels)
    perplexity = float(np.exp(-(shares * np.log(shares)).sum()))
    return LevelFigures(size, len(shares), perplexity / size, float(shares.max()), left)


def _ranks(codes: NDArray[np.int32], distance: NDArray[np.floating]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Places inside of each SID, and the items on each SID."""
    _, sid, counts = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    order = np.lexsort((distance, sid))
    begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank = np.empty(len(codes), dtype=np.int32)
    rank[order] = np.arange(len(codes)) - np.repeat(begins, counts)
    return rank, counts
