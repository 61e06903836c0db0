"""How long the phases of a batch took, on whichever device."""

import time

import torch


class PhaseClock:
    """Marks are cheap and do not synchronise; read ``milliseconds`` after the batch's results are on the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []
        self._times: list[float] = []

    def mark(self) -> None:
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            event.record(torch.cuda.current_stream(self._device))
            self._events.append(event)
        else:
            self._times.append(time.perf_counter())

    def milliseconds(self) -> list[float]:
        """Time between consecutive marks."""
        if self._device.type == "cuda":
            self._events[-1].synchronize()
            return [a.elapsed_time(b) for a, b in zip(self._events, self._events[1:], strict=False)]
        return [(b - a) * 1e3 for a, b in zip(self._times, self._times[1:], strict=False)]
