"""The engine equals the oracle on versions made by deltas."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from engine.catalog.catalog import Catalog
from engine.catalog.delta import Delta
from engine.recall_engine import RecallEngine
from engine.reference import Item
from tests.engine.pairing import Pairing, check
from tests.engine.strategies import Case, cases, catalog_of
from tests.engine.test_oracle_random import examples

_names = count()


@examples(80)
@given(case=cases(), data=st.data())
def test_a_version_made_by_deltas_answers_like_its_items(pairing: Pairing, case: Case, data: st.DataObject) -> None:
    engine = pairing.engine(case.model)
    places = [data.draw(st.sampled_from(["base", "changed", "first", "second"])) for _ in case.items]
    places[0] = "base" if places[0] in ("first", "second") else places[0]
    before = [_before(item, case.items[0], place) for item, place in zip(case.items, places, strict=True)]
    base = [item for item, place in zip(before, places, strict=True) if place in ("base", "changed")]
    withdrawn = [
        item for item, place in zip(case.items, places, strict=True) if place == "base" and not item.recallable
    ]
    catalog = catalog_of(engine.spec.id, engine.spec.level_sizes, base, f"base-{next(_names)}")
    engine.catalogs.stage(catalog)
    engine.catalogs.activate(catalog.version)
    version = catalog.version
    for name, gone in (("first", withdrawn), ("second", [])):
        upserts = [item for item, place in zip(case.items, places, strict=True) if place in _brought_by(name)]
        version = _apply(engine, catalog, version, upserts, gone)
    check(engine, case.items, case.requests, engine.recall(case.requests))


def _brought_by(delta: str) -> tuple[str, ...]:
    return ("first", "changed") if delta == "first" else ("second",)


def _before(item: Item, other: Item, place: str) -> Item:
    """What the base has: all of it recallable; a changed item with another SID and no tags."""
    before = replace(item, recallable=True)
    return replace(before, sid=other.sid, tags=frozenset()) if place == "changed" else before


def _apply(engine: RecallEngine, base: Catalog, parent: str, upserts: Sequence[Item], withdrawn: Sequence[Item]) -> str:
    """Make the delta active; its name."""
    version = f"delta-{next(_names)}"
    items = base.take(np.empty(0, np.int32))
    if upserts:
        items = catalog_of(engine.spec.id, engine.spec.level_sizes, upserts, "")
    ids = [item.id for item in withdrawn]
    gone = np.array(ids, dtype=np.int64) if isinstance(base.ids, np.ndarray) else pa.array(ids, pa.string())
    engine.catalogs.stage(Delta(version, parent, items, gone))
    engine.catalogs.activate(version)
    return version
