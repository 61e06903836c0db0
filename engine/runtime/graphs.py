"""Stages captured as CUDA graphs, for the shapes that batches are rounded up to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.runtime.lane import Lane
from engine.runtime.prefill_input import PrefillShape
from engine.runtime.search_input import SearchShape, TrieColumns
from engine.runtime.stages import Stages
from kernels.backend import NO_ITEM

Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Takes work apart from its launch: returns what launches it again, and its output, the same memory every time."""

TakeHidden = Callable[[Tensor | None], Tensor]
"""Copies the hidden states that the prefill left into the first rows of the given memory, or of its own; ``[R, H]``."""


class CudaCapture:
    """Captures on one lane into one memory pool: its graphs never run at the same time, so they share their memory."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        if self._lane.stream is not None:  # what the work reads was filled in on another stream
            self._lane.stream.wait_stream(torch.cuda.current_stream())
        with self._lane.active():
            work()  # compiles kernels and loads libraries, which a capture must not
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, self._pool, self._lane.stream, capture_error_mode="thread_local"):
                output = work()
        except RuntimeError as error:
            if isinstance(error.__context__, torch.OutOfMemoryError):  # hidden by the end of the broken capture
                raise error.__context__ from error
            raise
        return graph.replay, output


@dataclass(slots=True)
class PrefillGraph:
    """A prefill over ``memory``, which graphs that do not run at the same time may share."""

    shape: PrefillShape
    memory: Tensor
    output: Tensor = field(init=False)
    _replay: Callable[[], None] = field(init=False)

    @classmethod
    def of(cls, stages: Stages, shape: PrefillShape, capture: Capture, memory: Tensor) -> "PrefillGraph":
        """``memory``: uint8, at least as long as the shape's input."""
        graph = cls(shape, memory[: shape.layout().nbytes].zero_())
        shape.over(graph.memory)[0].slots.fill_(-1)
        graph._replay, graph.output = capture(lambda: stages.prefill(shape, graph.memory))
        return graph

    def run(self, host: Tensor) -> Tensor:
        """The hidden states for the input in ``host``; valid until the next run."""
        self.memory.copy_(host, non_blocking=True)
        self._replay()
        return self.output


@dataclass(slots=True)
class SearchGraph:
    """A search over ``memory`` and ``hidden``, which graphs that do not run at the same time may share."""

    shape: SearchShape
    memory: Tensor
    hidden: Tensor
    tries: list[TrieColumns]
    output: Tensor = field(init=False)
    _replay: Callable[[], None] = field(init=False)

    @classmethod
    def of(cls, stages: Stages, shape: SearchShape, capture: Capture, memory: Tensor, hidden: Tensor) -> "SearchGraph":
        """``memory``: uint8, at least as long as the shape's input; ``hidden``: at least as many rows ``[R, H]``."""
        graph = cls(
            shape,
            memory[: shape.inputs().nbytes].zero_(),
            hidden[: shape.requests],
            [_one_item_trie(shape.requests, memory.device)] * len(shape.widths),
        )
        graph._fill_in()
        graph._replay, graph.output = capture(lambda: stages.search(shape, graph.memory, graph.hidden, graph.tries))
        return graph

    def run(self, host: Tensor, take_hidden: TakeHidden, tries: Sequence[TrieColumns]) -> Tensor:
        """The output for the input in ``host``; valid until the next run."""
        self.tries[:] = tries
        self.memory.copy_(host, non_blocking=True)
        take_hidden(self.hidden)
        self._replay()
        return self.output

    def _fill_in(self) -> None:
        """Requests of one token and one item, so that the work can run before there is a batch."""
        search = self.shape.input_over(self.memory, self.hidden, self.tries)
        policy = search.policy
        for ones in (search.table.length, *policy.widths, policy.min_width, policy.max_per_leaf, policy.top_k):
            ones.fill_(1)
        policy.margin.fill_(torch.inf)
        search.excluded.fill_(NO_ITEM)
        for level, columns in zip(search.tries, self.tries, strict=True):
            for address, (tensor, *_) in zip(level.address, columns, strict=True):
                address.fill_(tensor.data_ptr())


def _one_item_trie(requests: int, device: torch.device) -> TrieColumns:
    bounds, code = (torch.tensor(values, dtype=torch.int32, device=device) for values in ([0, 1], [0]))
    return (bounds,) * requests, (code,) * requests, (bounds,) * requests, (bounds,) * requests
