"""A catalog as a plain list of items, and which of them a request may have."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engine.catalog.catalog import Catalog
from engine.request import RecallRequest, TagFilter

ItemId = int | str
Sid = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """One item: its codes, its place among items of the same SID (``rank``, then ``id``), what decides live-ness."""

    id: ItemId
    sid: Sid
    rank: int = 0
    tags: frozenset[str] = frozenset()
    recallable: bool = True


def passes(item: Item, tag_filter: TagFilter) -> bool:
    """Whether the item's own tags are what the filter asks for."""
    has = item.tags.__contains__
    return (
        (not tag_filter.any or any(map(has, tag_filter.any)))
        and all(map(has, tag_filter.all))
        and not any(map(has, tag_filter.none))
    )


def live_items(items: Sequence[Item], request: RecallRequest, excluded: Collection[ItemId]) -> list[Item]:
    """The items that the request may have, in item order: by SID, then ``rank``, then id."""
    live = [
        item
        for item in items
        if item.recallable and item.id not in excluded and (request.filter is None or passes(item, request.filter))
    ]
    return sorted(live, key=lambda item: (item.sid, item.rank, item.id))


def items_of(catalog: Catalog) -> list[Item]:
    """The items of a built catalog; their order inside an SID becomes the rank."""
    trie = catalog.trie
    paths: list[Sid] = [()]
    for codes, begins in zip(trie.code, trie.child_begin, strict=True):
        paths = [
            (*path, int(codes[child]))
            for node, path in enumerate(paths)
            for child in range(begins[node], begins[node + 1])
        ]
    ids = catalog.ids.tolist() if not hasattr(catalog.ids, "to_pylist") else catalog.ids.to_pylist()
    bitmaps = {tag: holders.tolist() for tag, holders in catalog.tags.items()}
    items = []
    for leaf, sid in enumerate(paths):
        for rank, place in enumerate(range(trie.item_begin[-1][leaf], trie.item_begin[-1][leaf + 1])):
            tags = frozenset(tag for tag, holders in bitmaps.items() if holders[place])
            items.append(Item(ids[place], sid, rank, tags, bool(catalog.recallable[place])))
    return items
