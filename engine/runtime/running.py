"""A call of the engine that is under way."""

from collections.abc import Sequence
from contextlib import ExitStack

import torch

from engine.errors import RequestError
from engine.runtime.answers import Answer
from engine.runtime.lane import Mark
from engine.runtime.pipeline import Flight, Pipeline
from engine.runtime.prepared import PreparedRequest


class Running:
    """The answers to ``count`` requests, known or still on the device. ``pins``: the catalogs held for them."""

    def __init__(self, pipeline: Pipeline, count: int, known: dict[int, Answer], pins: ExitStack) -> None:
        self._pipeline, self._count = pipeline, count
        self._answers, self._pins = known, pins
        self._flights: list[Flight] = []

    def launch(self, batch: Sequence[PreparedRequest], after: Mark | None = None) -> None:
        """Start a part of the requests, on the device ``after`` this mark. Raises DeviceError."""
        waiting = list(batch)
        try:
            for flight in self._pipeline.launch(batch, after):
                self._flights.append(flight)
                del waiting[: len(flight.batch)]
        except RequestError as refusal:
            answer = refusal.as_answer()
            self._answers.update((item.place, answer) for item in waiting)

    @property
    def done(self) -> bool:
        """The device has finished: ``collect`` will not wait."""
        return all(flight.reached for flight in self._flights)

    @torch.inference_mode()
    def collect(self) -> list[Answer]:
        """Wait; one answer per request, in order. Call it once. Raises DeviceError, or what is a bug."""
        self.finish()
        for flight in self._flights:
            self._answers.update(zip((item.place for item in flight.batch), flight.result(), strict=True))
        return [self._answers[place] for place in range(self._count)]

    def finish(self) -> None:
        """Wait for what was launched and give back what it holds. Raises DeviceError."""
        with self._pins:
            for flight in self._flights:
                self._pipeline.finish(flight)
