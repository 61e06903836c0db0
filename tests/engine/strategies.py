"""Random catalogs, models and requests for the comparison of the engine with the oracle."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.catalog.build import build_catalog
from engine.catalog.catalog import Catalog
from engine.reference import Item
from engine.reference.items import ItemId
from engine.request import NO_ITEMS, BeamPolicy, ItemIds, RecallRequest, Score, TagFilter
from tests.engine.tiny_models import TinyModel

TAGS = ("a", "b", "c")
SIZES = (1, 2, 3, 5, 7, 11, 17, 33)
SCORES: tuple[Score, ...] = ("level", "vocab", "legal")


def _model(seed: int) -> TinyModel:
    random = np.random.default_rng(seed)
    shared = bool(random.random() < 0.3)
    sizes = tuple(int(size) for size in random.choice(SIZES, size=1 + seed % 5))
    return TinyModel(
        sizes=(max(sizes),) * len(sizes) if shared else sizes,
        architecture=("qwen3", "qwen2", "llama")[seed % 3],
        seed=seed,
        shared=shared,
        tied=bool(random.random() < 0.3),
        layers=int(random.integers(1, 4)),
        kv_heads=int(random.choice((1, 2, 4))),
        head_dim=int(random.choice((6, 8, 16))),
        sharpness=float(random.choice((2.0, 2.0, 0.05))),
    )


MODELS = tuple(_model(seed) for seed in range(30))
"""Every architecture at every depth from 1 to 5, twice."""


@dataclass(frozen=True, slots=True)
class Case:
    """``requests`` run as one batch on ``model`` with a catalog of ``items``."""

    model: TinyModel
    items: tuple[Item, ...]
    requests: tuple[RecallRequest, ...]


def ids_as_asked(ids: list[ItemId]) -> ItemIds:
    """Item ids in the form that a request holds: int64 or strings."""
    if not ids:
        return NO_ITEMS
    return [str(id_) for id_ in ids] if isinstance(ids[0], str) else np.array(ids, dtype=np.int64)


def items_at(sids: NDArray[np.integer]) -> list[Item]:
    return [Item(id_, tuple(sid)) for id_, sid in enumerate(sids.tolist())]


def random_leaves(sizes: tuple[int, ...], count: int, seed: int = 0) -> NDArray[np.integer]:
    """``count`` distinct SIDs of a full trie, ``[count, levels]``."""
    chosen = np.random.default_rng(seed).choice(int(np.prod(sizes)), count, replace=False)
    return np.stack(np.unravel_index(chosen, sizes), axis=1)


def catalog_of(model_id: str, sizes: tuple[int, ...], items: Sequence[Item], version: str = "v1") -> Catalog:
    tags = sorted({tag for item in items for tag in item.tags})
    return build_catalog(
        version=version,
        model=model_id,
        sizes=sizes,
        ids=ids_as_asked([item.id for item in items]),
        sids=np.array([item.sid for item in items], dtype=np.int32),
        recallable=np.array([item.recallable for item in items]),
        rank=np.array([item.rank for item in items], dtype=np.float64),
        tags={tag: np.array([tag in item.tags for item in items]) for tag in tags},
    )


@st.composite
def catalogs(draw: st.DrawFn, model: TinyModel) -> tuple[Item, ...]:
    """Items in no order: few or many, crowded on few SIDs or spread, with tags, ranks and items out of recall."""
    count = draw(st.one_of(st.integers(1, 4), st.integers(1, 120)))
    random = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    crowd = draw(st.sampled_from((1.0, 0.5, 0.2)))
    named = draw(st.booleans())
    dead = draw(st.sampled_from((0.0, 0.3)))
    ids = random.permutation(3 * count)[:count] - count
    return tuple(
        Item(
            id=f"item {id_}" if named else int(id_),
            sid=tuple(int(random.integers(max(1, round(size * crowd)))) for size in model.sizes),
            rank=int(random.integers(3)),
            tags=frozenset(tag for tag in TAGS if random.random() < 0.5),
            recallable=bool(random.random() >= dead),
        )
        for id_ in ids
    )


def policies(levels: int) -> st.SearchStrategy[BeamPolicy]:
    width = st.one_of(st.integers(1, 4), st.integers(1, 64))
    fixed = width.map(lambda w: (w,) * levels)
    scheduled = st.tuples(*[width] * levels)
    margin = st.sampled_from((0.0, 0.5, 2.0, 6.0, 1e300, float("inf")))
    return st.one_of(
        st.builds(BeamPolicy, fixed),
        st.builds(BeamPolicy, scheduled),
        st.builds(BeamPolicy, st.one_of(fixed, scheduled), margin, st.integers(1, 8)),
    )


tag_filters = st.builds(
    TagFilter,
    any=st.lists(st.sampled_from((*TAGS, "nobody's")), max_size=2).map(tuple),
    all=st.lists(st.sampled_from(TAGS), max_size=2).map(tuple),
    none=st.lists(st.sampled_from((*TAGS, "nobody's")), max_size=2).map(tuple),
)


@st.composite
def requests(draw: st.DrawFn, model: TinyModel, items: tuple[Item, ...]) -> RecallRequest:
    known: list[ItemId] = [item.id for item in items]
    unknown: ItemId = "stranger" if isinstance(known[0], str) else 1 << 40
    some_ids = st.lists(st.sampled_from([*known, unknown]), max_size=2 * model.max_history_items)
    policy = draw(policies(len(model.sizes)))
    fields: dict[str, Any] = {
        "beam": policy,
        "top_k": draw(st.integers(1, policy.widths[-1])),
        "score": draw(st.sampled_from(SCORES)),
        "max_items_per_sid": draw(st.sampled_from((None, None, 1, 2))),
        "filter": draw(st.one_of(st.none(), tag_filters)),
        "exclude": ids_as_asked(draw(st.one_of(st.just([]), some_ids))),
        "return_sids": draw(st.booleans()),
    }
    if draw(st.integers(0, 5)) == 0:
        length = draw(st.sampled_from((1, 2, 17, 127, 128, 129, 150)))
        random = np.random.default_rng(length)
        return RecallRequest(tokens=random.integers(0, model.vocab, length).astype(np.int32), **fields)
    history = draw(some_ids)
    template = draw(st.sampled_from(("default", "framed", "bare" if history and history[-1] != unknown else "default")))
    if template == "framed":
        fields["context"] = {
            "region": draw(st.sampled_from(("north", "south"))),
            "hour": draw(st.sampled_from(("morning", 13))),
        }
    return RecallRequest(
        history=ids_as_asked(history), template=template, exclude_history=draw(st.booleans()), **fields
    )


@st.composite
def cases(draw: st.DrawFn, least: int = 1, most: int = 4) -> Case:
    model = draw(st.sampled_from(MODELS))
    items = draw(catalogs(model))
    return Case(model, items, tuple(draw(st.lists(requests(model, items), min_size=least, max_size=most))))
