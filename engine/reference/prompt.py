"""From a request to the tokens that the model reads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from engine.reference.items import Item, ItemId
from engine.request import RecallRequest


@dataclass(frozen=True, slots=True)
class Sid:
    """``sid.json`` as it is read."""

    raw: Mapping[str, Any]

    @classmethod
    def load(cls, model_dir: Path) -> "Sid":
        return cls(json.loads((model_dir / "sid.json").read_text()))

    def token(self, level: int, code: int) -> int:
        return int(self.raw["levels"][level]["token_base"]) + code

    def codebook(self, level: int) -> range:
        base = int(self.raw["levels"][level]["token_base"])
        return range(base, base + int(self.raw["levels"][level]["size"]))


@dataclass(frozen=True, slots=True)
class Prompt:
    """``used``: the history after the cap; ``unknown``: items of it that the catalog lacks."""

    tokens: tuple[int, ...]
    used: tuple[ItemId, ...]
    truncated: bool
    unknown: int


def newest(history: Sequence[ItemId], cap: int, drop: int) -> Sequence[ItemId]:
    """What is left of a history over the cap: its oldest ``drop`` items go at once, as often as it takes."""
    over = max(0, len(history) - cap)
    return history[ceil(over / drop) * drop :]


def build_prompt(sid: Sid, items: Mapping[ItemId, Item], request: RecallRequest) -> Prompt:
    """The prompt of a request over a catalog's ``items``, by id."""
    if request.tokens is not None:
        return Prompt(tuple(map(int, request.tokens)), (), False, 0)
    history = list(map(_plain, request.history if request.history is not None else ()))
    used = newest(history, sid.raw["max_history_items"], sid.raw["history_drop"])
    known = [items[id_] for id_ in used if id_ in items]
    template = sid.raw["prompts"][request.template]
    tokens = _text(sid, request, template["prefix"])
    for item in known:
        tokens += template["before_item"]
        tokens += [sid.token(level, code) for level, code in enumerate(item.sid)]
        tokens += template["after_item"]
    tokens += _text(sid, request, template["suffix"])
    return Prompt(tuple(tokens), tuple(used), len(used) < len(history), len(used) - len(known))


def _text(sid: Sid, request: RecallRequest, pieces: Sequence[int | str]) -> list[int]:
    """A prompt's fixed tokens, and for a slot's name the token that the request's context gives it."""
    values = [request.context[piece] if isinstance(piece, str) else piece for piece in pieces]
    return [
        value if isinstance(value, int) else int(sid.raw["slots"][piece][value])
        for piece, value in zip(pieces, values, strict=True)
    ]


def _plain(id_: Any) -> ItemId:
    return id_ if isinstance(id_, str) else int(id_)
