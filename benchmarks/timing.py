"""Times of device work through captured graphs."""

from collections.abc import Callable, Sequence
from statistics import median

import torch


def graph_time(calls: Sequence[Callable[[], object]], repeat: int = 3, replays: int = 15) -> float:
    """Median time of one call in microseconds. The graph holds every call ``repeat`` times, in turn.

    Give several calls on different inputs, or the cache answers.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(repeat):
                for call in calls:
                    call()
        times = []
        for _ in range(replays + 2):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            stream.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / (repeat * len(calls)))
    return median(times[2:])
