"""A Prometheus histogram that takes many observations at a time: one by one they cost more than all else of a reply."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import Final

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_INFINITY: Final = float("inf")


class Series:
    """One label set. Thread-safe."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = np.array(bounds)
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._sum = 0.0
        self._lock = Lock()

    def observe_many(self, values: NDArray[np.float64]) -> None:
        counts = np.bincount(np.searchsorted(self._bounds, values), minlength=len(self._counts))
        with self._lock:
            self._counts += counts
            self._sum += float(values.sum())

    def state(self) -> tuple[list[int], float]:
        """Observations up to each bound and in all, and their sum."""
        with self._lock:
            return self._counts.cumsum().tolist(), self._sum


class BulkHistogram(Collector):
    """``label`` names what tells its series apart; there is one for each of ``values``."""

    def __init__(
        self,
        name: str,
        text: str,
        bounds: Sequence[float],
        label: str,
        values: Iterable[str],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._text, self._label = name, text, label
        self._bounds = [floatToGoString(bound) for bound in (*bounds, _INFINITY)]  # type: ignore[no-untyped-call]  # the library left it untyped
        self._series = {value: Series(bounds) for value in values}
        registry.register(self)

    def labels(self, value: str) -> Series:
        """Raises KeyError for a value that was not announced."""
        return self._series[value]

    def describe(self) -> Iterator[Metric]:
        yield Metric(self._name, self._text, "histogram")

    def collect(self) -> Iterator[Metric]:
        metric = Metric(self._name, self._text, "histogram")
        for value, series in self._series.items():
            labels = {self._label: value}
            counts, total = series.state()
            for bound, count in zip(self._bounds, counts, strict=True):
                metric.add_sample(self._name + "_bucket", labels | {"le": bound}, count)
            metric.add_sample(self._name + "_count", labels, counts[-1])
            metric.add_sample(self._name + "_sum", labels, total)
        yield metric


class BeforeCollect(Collector):
    """Registered first, it makes whoever keeps observations back hand them over before they are read."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls: list[Callable[[], None]] = []
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        yield from ()

    def collect(self) -> Iterator[Metric]:
        for call in self.calls:
            call()
        yield from ()
