"""How busy a CUDA device was over a stretch of time, from a profiler trace: idle share, and streams side by side."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, slots=True)
class Span:
    """Work on one stream, microseconds."""

    stream: int
    start: float
    end: float


@dataclass(slots=True)
class Timeline:
    """Filled when ``traced`` ends."""

    spans: list[Span] = field(default_factory=list)

    def row(self) -> dict[str, float]:
        """Shares of the time from the first work to the last: nothing ran, two or more streams ran at once."""
        return shares(self.spans)


@contextmanager
def traced() -> Iterator[Timeline]:
    """All work on the device meanwhile, whichever thread launched it."""
    timeline = Timeline()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profiler:
        yield timeline
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    timeline.spans += [
        Span(int(event["args"]["stream"]), event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") in _ON_DEVICE
    ]


def shares(spans: Sequence[Span]) -> dict[str, float]:
    if not spans:
        return {}
    changes = sorted(
        [(span.start, 1, span.stream) for span in spans] + [(span.end, -1, span.stream) for span in spans],
        key=lambda change: (change[0], change[1]),
    )
    running: dict[int, int] = {}
    idle = both = 0.0
    begin = last = changes[0][0]
    for time, change, stream in changes:
        busy = sum(count > 0 for count in running.values())
        idle += (time - last) * (busy == 0)
        both += (time - last) * (busy > 1)
        running[stream] = running.get(stream, 0) + change
        last = time
    whole = last - begin
    return {
        "seconds": round(whole / 1e6, 4),
        "idle": round(idle / whole, 4),
        "streams_side_by_side": round(both / whole, 4),
        "pieces_of_work": len(spans),
    }
