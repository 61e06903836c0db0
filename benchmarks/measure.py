"""Medians of repeated timings, and a wall limit for a whole run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

_WARM_MS, _REPEAT_MS = 20, 60
_CPU_REPEATS = 5
_WARM_REPLAYS = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of ``runs`` repetitions."""

    median_ms: float
    min_ms: float
    max_ms: float
    runs: int

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> "Timing":
        return cls(median(milliseconds), min(milliseconds), max(milliseconds), len(milliseconds))

    def row(self) -> dict[str, Any]:
        """As a result row has it: ``ms`` is the median."""
        values = {"ms": self.median_ms, "min_ms": self.min_ms, "max_ms": self.max_ms, "runs": self.runs}
        return {name: round(value, 4) for name, value in values.items()}


class WallLimit:
    """Says when a run has used up its seconds; None never ends."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds

    @property
    def passed(self) -> bool:
        return self._end is not None and self._clock() >= self._end


def kernel_ms(call: Callable[[], object], device: torch.device) -> float:
    """Median of one call with cold caches, timed alone: Triton's ``do_bench`` on CUDA, a wall clock elsewhere."""
    if device.type == "cuda":
        from triton.testing import do_bench

        return float(do_bench(call, warmup=_WARM_MS, rep=_REPEAT_MS, return_mode="median"))
    call()
    return wall_ms(call, _CPU_REPEATS).median_ms


def wall_ms(call: Callable[[], object], runs: int) -> Timing:
    """Wall time of calls that return when their work is done."""
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    return Timing.of(times)


def graph_ms(work: Callable[[], object], device: torch.device, runs: int) -> Timing:
    """All of ``work`` as one captured CUDA graph, replayed; called plainly where there is no CUDA."""
    if device.type != "cuda":
        work()
        return wall_ms(work, runs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # which may still be filling the inputs in
    with torch.cuda.stream(stream):
        work()  # compiles, and lets libraries take their workspaces before the capture
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
        times = []
        for _ in range(runs + _WARM_REPLAYS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            stream.synchronize()
            times.append(begin.elapsed_time(end))
    return Timing.of(times[_WARM_REPLAYS:])


class Microseconds(float):
    """A median that knows its extremes."""

    low: float
    high: float

    @classmethod
    def of(cls, timing: Timing, calls: int) -> "Microseconds":
        """Of one of the ``calls`` that ``timing`` took together."""
        each = cls(timing.median_ms * 1e3 / calls)
        each.low, each.high = timing.min_ms * 1e3 / calls, timing.max_ms * 1e3 / calls
        return each


def call_us(calls: Sequence[Callable[[], object]], repeat: int = 3, replays: int = 15) -> Microseconds:
    """One call on the CUDA device, from a graph that holds every call ``repeat`` times, in turn.

    Give several calls on different inputs, or the cache answers.
    """

    def work() -> None:
        for _ in range(repeat):
            for call in calls:
                call()

    return Microseconds.of(graph_ms(work, torch.device("cuda"), replays), repeat * len(calls))
