"""Beam search as it is defined, one request at a time, every prefix scored from scratch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path

import numpy as np

from engine.catalog.catalog import Catalog
from engine.errors import RequestError
from engine.reference.decoder import Array, load_decoder, log_softmax
from engine.reference.items import Item, ItemId, items_of, live_items
from engine.reference.prompt import Sid, build_prompt
from engine.request import RecallRequest

Prefix = tuple[int, ...]
Beams = Mapping[Prefix, float]
"""Prefixes with their scores, best first."""


@dataclass(frozen=True, slots=True)
class Level:
    """``candidates``: every live child of the level's beams in the total order; the first ``width`` go on."""

    candidates: Beams
    width: int

    @property
    def beams(self) -> Beams:
        return dict(list(self.candidates.items())[: self.width])


@dataclass(frozen=True, slots=True)
class OracleResult:
    """``search`` scores further prefixes of the same request, for a check that has to look past the beams."""

    items: tuple[ItemId, ...]
    scores: tuple[float, ...]
    sids: tuple[Prefix, ...]
    beam_widths: tuple[int, ...]
    exhausted: bool
    truncated: bool
    unknown_items: int
    context_tokens: int
    levels: tuple[Level, ...]
    search: "Search"


class Search:
    """The trie of one request's live items, and the model's scores of its prefixes."""

    def __init__(self, model_dir: Path, items: Sequence[Item], request: RecallRequest) -> None:
        self.request = request
        self.decoder = load_decoder(model_dir)
        self.sid = Sid.load(model_dir)
        self.prompt = build_prompt(self.sid, {item.id: item for item in items}, request)
        excluded = {id_ if isinstance(id_, str) else int(id_) for id_ in request.exclude}
        if request.exclude_history:
            excluded.update(self.prompt.used)
        self.leaves: dict[Prefix, list[Item]] = {}
        for item in live_items(items, request, excluded):
            self.leaves.setdefault(item.sid, []).append(item)
        self.children: dict[Prefix, list[Prefix]] = {}
        seen: set[Prefix] = set()
        for leaf in self.leaves:
            for depth in range(1, len(leaf) + 1):
                if leaf[:depth] not in seen:
                    seen.add(leaf[:depth])
                    self.children.setdefault(leaf[: depth - 1], []).append(leaf[:depth])

    def candidates(self, beams: Beams) -> Beams:
        """Every live child of every beam, with its score, in the total order: score descending, then SID order."""
        scores: dict[Prefix, float] = {}
        for prefix, logits in zip(beams, self._logits(beams), strict=True):
            for child, logp in zip(self.children[prefix], self._logp(prefix, logits), strict=True):
                if isnan(logp):
                    raise RequestError("internal", "the model's logits are not numbers")
                scores[child] = beams[prefix] + float(logp)
        return dict(sorted(scores.items(), key=lambda entry: (-entry[1], entry[0])))

    def _logits(self, prefixes: Iterable[Prefix]) -> Array:
        prompts = [
            [*self.prompt.tokens, *(self.sid.token(level, code) for level, code in enumerate(prefix))]
            for prefix in prefixes
        ]
        return self.decoder.logits(np.array(prompts, dtype=np.int64))

    def _logp(self, prefix: Prefix, logits: Array) -> Array:
        """Log-probabilities of the children of ``prefix``, in their order."""
        level = len(prefix)
        tokens = [self.sid.token(level, child[-1]) for child in self.children[prefix]]
        if self.request.score == "vocab":
            return log_softmax(logits)[tokens]
        if self.request.score == "level":
            codebook = self.sid.codebook(level)
            return log_softmax(logits[codebook])[[token - codebook.start for token in tokens]]
        return log_softmax(logits[tokens])

    def width_after(self, level: int, candidates: Beams) -> int:
        """How many of the ordered candidates stay: the level's width, then the margin below the best of them."""
        policy = self.request.beam
        scores = list(candidates.values())[: policy.widths[level]]
        if policy.margin is None or not scores:
            return len(scores)
        within = sum(score >= scores[0] - policy.margin for score in scores)
        return max(within, min(policy.min_width, len(scores)))

    def resolve(self, leaves: Beams) -> list[tuple[Item, float]]:
        """The items of the leaves, at most ``max_items_per_sid`` of each, until ``top_k``."""
        most = self.request.max_items_per_sid
        found = [(item, score) for leaf, score in leaves.items() for item in self.leaves[leaf][:most]]
        return found[: self.request.top_k]

    def run(self) -> OracleResult:
        beams: Beams = {(): 0.0} if self.leaves else {}
        levels: list[Level] = []
        for depth in range(len(self.request.beam.widths)):
            candidates = self.candidates(beams) if beams else {}
            levels.append(Level(candidates, self.width_after(depth, candidates)))
            beams = levels[-1].beams
        found = self.resolve(beams)
        return OracleResult(
            items=tuple(item.id for item, _ in found),
            scores=tuple(score for _, score in found),
            sids=tuple(item.sid for item, _ in found),
            beam_widths=tuple(level.width for level in levels),
            exhausted=sum(map(len, self.leaves.values())) < self.request.top_k,
            truncated=self.prompt.truncated,
            unknown_items=self.prompt.unknown,
            context_tokens=len(self.prompt.tokens),
            levels=tuple(levels),
            search=self,
        )


def oracle_recall(model_dir: Path, catalog: Catalog | Sequence[Item], request: RecallRequest) -> OracleResult:
    """What the definition of the beam search says about one valid request.

    Raises ``RequestError("internal")`` where a live candidate's score is not a number.
    """
    items = items_of(catalog) if isinstance(catalog, Catalog) else catalog
    return Search(model_dir, items, request).run()
