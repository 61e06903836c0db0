"""Runs the stages of a batch: from a captured graph where one holds it, eagerly otherwise."""

import logging
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.runtime.graphs import Capture, PrefillGraph, SearchGraph, TakeHidden
from engine.runtime.prefill_input import PrefillShape, pack_prompts
from engine.runtime.prepared import PreparedRequest
from engine.runtime.search_input import SearchShape, pack_search, trie_columns
from engine.runtime.stages import Stages

log = logging.getLogger(__name__)


class Executor:
    """Counts what ran from a graph and what did not."""

    def __init__(self, stages: Stages, device: torch.device) -> None:
        self._stages, self._device = stages, device
        self._prefill_graphs: list[PrefillGraph] = []
        self._search_graphs: list[SearchGraph] = []
        self._counts = Counter(
            graph_prefills=0, eager_prefills=0, prefill_tokens=0, prefill_tokens_padded=0,
            graph_searches=0, eager_searches=0, search_rows=0, search_rows_padded=0,
        )  # fmt: skip

    def stats(self) -> dict[str, float]:
        """Graphs, runs with and without one, and the tokens and beams that went through the layers, padding apart."""
        return {"graphs": len(self._prefill_graphs) + len(self._search_graphs), **self._counts}

    def capture(
        self,
        prefills: Sequence[PrefillShape],
        searches: Sequence[SearchShape],
        hidden: Tensor,
        of_prefill: Capture,
        of_search: Capture,
    ) -> None:
        """Capture these shapes, cheapest first. ``hidden``: memory for the hidden states of the largest, ``[R, H]``.

        Where the device's memory ends, the rest is left out.
        """
        memory = self._blank(max((shape.layout().nbytes for shape in prefills), default=0))
        inputs = self._blank(max((shape.inputs().nbytes for shape in searches), default=0))
        try:
            for shape in sorted(prefills, key=lambda shape: shape.tokens):
                self._prefill_graphs.append(PrefillGraph.of(self._stages, shape, of_prefill, memory))
            for search in sorted(searches, key=lambda shape: shape.work):
                self._search_graphs.append(SearchGraph.of(self._stages, search, of_search, inputs, hidden))
        except torch.OutOfMemoryError as error:
            log.warning("%d graphs are captured, for more there is no memory: %s", self.stats()["graphs"], error)

    def prefill(
        self, tokens: Sequence[NDArray[np.int32]], reused: Sequence[int], pages: Sequence[NDArray[np.int32]]
    ) -> Tensor:
        """Hidden states of the last tokens, ``[R, H]`` or more rows; valid until the next prefill.

        ``reused``: tokens at the beginning of each prompt whose keys and values its pages hold.
        """
        need = PrefillShape(sum(map(len, tokens)) - sum(reused), len(tokens), max(map(len, pages)))
        graph = next((graph for graph in self._prefill_graphs if graph.shape.holds(need)), None)
        shape = graph.shape if graph else need
        host = pack_prompts(shape, tokens, reused, pages, self._device)
        self._counts["graph_prefills" if graph else "eager_prefills"] += 1
        self._counts["prefill_tokens"] += need.tokens
        self._counts["prefill_tokens_padded"] += shape.tokens - need.tokens
        return graph.run(host) if graph else self._stages.prefill(shape, self._upload(host))

    def search(
        self, batch: Sequence[PreparedRequest], pages: Sequence[NDArray[np.int32]], take_hidden: TakeHidden
    ) -> tuple[SearchShape, Tensor]:
        """The output's shape and block of memory, valid until the next search.

        ``take_hidden`` is called when all that the search needs besides is on its way to the device.
        """
        need = SearchShape.of(batch)
        graph = next((graph for graph in self._search_graphs if graph.shape.holds(need)), None)
        shape = graph.shape if graph else need
        tries = trie_columns(batch, shape.requests)
        host = pack_search(shape, batch, pages, tries, self._device)
        rows = sum(sum(item.widths[:-1]) for item in batch)
        self._counts["graph_searches" if graph else "eager_searches"] += 1
        self._counts["search_rows"] += rows
        self._counts["search_rows_padded"] += shape.requests * sum(shape.widths[:-1]) - rows
        if graph:
            return shape, graph.run(host, take_hidden, tries)
        return shape, self._stages.search(shape, self._upload(host), take_hidden(None), tries)

    def _blank(self, nbytes: int) -> Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8, device=self._device)

    def _upload(self, host: Tensor) -> Tensor:
        return host.to(self._device, non_blocking=True)
