"""Work in order on a device, and points in it that can be waited for."""

import time
from contextlib import AbstractContextManager, nullcontext

import torch


class Mark:
    """A point in a lane: reached when all work put there before it is done. Making one does not wait."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._time = time.perf_counter()
        self.event: torch.cuda.Event | None = None
        if stream is not None:
            self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self.event.record(stream)

    @property
    def reached(self) -> bool:
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]  # as above

    def wait(self) -> None:
        """Let the host wait until it is reached."""
        if self.event is not None:
            self.event.synchronize()

    def milliseconds_since(self, earlier: "Mark") -> float:
        """Device time between two marks, both reached."""
        if self.event is not None and earlier.event is not None:
            return float(earlier.event.elapsed_time(self.event))
        return (self._time - earlier._time) * 1e3  # noqa: SLF001  (another mark)


class Lane:
    """A stream of a CUDA device. On the CPU work is done when the call returns, and a lane does nothing."""

    def __init__(self, device: torch.device, *, urgent: bool = False) -> None:
        """``urgent``: where two lanes compete for the device, this one's work goes first."""
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            priority = -1 if urgent else 0
            self.stream = torch.cuda.Stream(device, priority)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def active(self) -> AbstractContextManager[object]:
        """What torch launches inside goes to this lane."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def mark(self) -> Mark:
        return Mark(self.stream)

    def after(self, mark: Mark) -> None:
        """Work put here from now on starts when ``mark`` is reached. The host does not wait."""
        if self.stream is not None and mark.event is not None:
            self.stream.wait_event(mark.event)
