"""What the fleet says of itself: the processes' own words put together, every series and reason with its GPU."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException

from consumer.fleet.fleet import Fleet, Member
from consumer.service.metrics import PREFIX
from consumer.service.settings import ServiceSettings, redacted
from consumer.version import recallstream_version

GPU = "gpu"
READY = PREFIX + "ready"
RESTARTS = PREFIX + "gpu_restarts"
RESTARTS_HELP = "Times that the GPU's process was started again."

SILENT_S = 5.0
"""A process that has not answered for so long is not ready, whatever it said before."""


class FleetStatus:
    """A ``StatusSource``: ready if every process is."""

    def __init__(self, settings: ServiceSettings, fleet: Fleet, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Series(fleet, fleet.members))
        self._fleet = fleet
        self._stalled_after_s = settings.http.stalled_after_s
        self._shown_settings = redacted(settings)
        self._clock = clock
        self._started = clock()

    def refresh(self) -> None:
        """The series are asked for when they are collected."""

    def faults(self) -> tuple[str, ...]:
        return tuple(_of(member, fault) for member in self._fleet.members for fault in self._faults(member))

    def unready(self) -> tuple[str, ...]:
        reasons = ["draining"] if self._fleet.draining else []
        return (*reasons, *(_of(member, reason) for member in self._fleet.members for reason in self._unready(member)))

    def status(self) -> Mapping[str, Any]:
        reasons = self.unready()
        return {
            "service": {
                "version": recallstream_version(),
                "ready": not reasons,
                "reasons": reasons,
                "faults": self.faults(),
                "uptime_s": self._clock() - self._started,
            },
            "gpus": [
                {
                    "gpu": member.gpu.name,
                    "pid": getattr(member.process, "pid", None),
                    "restarts": member.restarts,
                    "last_exit": member.last_exit,
                    "ready": not member.unready,
                    "reasons": member.unready,
                    "status": status and {name: part for name, part in status.items() if name != "settings"},
                }
                for member, status in zip(self._fleet.members, self._fleet.ask("status"), strict=True)
            ],
            "settings": self._shown_settings,
        }

    def catalog(self) -> Mapping[str, Any]:
        """The first process's that answers: they see the same Redis, and their acks say what each of them does."""
        return _answered(self._fleet.ask("catalog"), self.unready())

    def _unready(self, member: Member) -> Iterator[str]:
        yield from member.unready
        yield from self._silent(member, SILENT_S)

    def _faults(self, member: Member) -> Iterator[str]:
        yield from member.faults
        yield from self._silent(member, self._stalled_after_s)

    def _silent(self, member: Member, limit_s: float) -> Iterator[str]:
        seconds = self._clock() - member.heard
        if member.process and not self._fleet.draining and seconds > limit_s:
            yield f"no answer for {seconds:.0f} s"


class MemberStatus:
    """A ``StatusSource``: one process of the fleet, as if it were alone."""

    def __init__(self, fleet: Fleet, index: int) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Series(fleet, fleet.members[index : index + 1]))
        self._fleet = fleet
        self._index = index

    def refresh(self) -> None:
        """The series are asked for when they are collected."""

    def faults(self) -> tuple[str, ...]:
        return self._fleet.members[self._index].faults

    def unready(self) -> tuple[str, ...]:
        return self._fleet.members[self._index].unready

    def status(self) -> Mapping[str, Any]:
        return _answered(self._fleet.ask("status")[self._index :][:1], self.unready())

    def catalog(self) -> Mapping[str, Any]:
        return _answered(self._fleet.ask("catalog")[self._index :][:1], self.unready())


class _Series(Collector):
    """The series of ``members``, each with the label ``gpu``; never summed, or a restart would look like a reset."""

    def __init__(self, fleet: Fleet, members: Sequence[Member]) -> None:
        self._fleet = fleet
        self._members = members

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for member, answer in zip(self._fleet.members, self._fleet.ask("metrics"), strict=True):
            if member in self._members:
                _merge(families, answer or (), member.gpu.name)
        families.pop(READY, None)  # the parent knows better: a process that has gone says nothing
        yield from families.values()
        ready = GaugeMetricFamily(READY, "1 while /readyz says yes.", labels=(GPU,))
        restarts = CounterMetricFamily(RESTARTS, RESTARTS_HELP, labels=(GPU,))
        for member in self._members:
            ready.add_metric((member.gpu.name,), float(not member.unready))
            restarts.add_metric((member.gpu.name,), member.restarts)
        yield ready
        yield restarts


def _merge(families: dict[str, Metric], more: Iterable[Metric], gpu: str) -> None:
    for family in more:
        merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        merged.samples += [sample._replace(labels={GPU: gpu, **sample.labels}) for sample in family.samples]


def _answered(answers: Iterable[Mapping[str, Any] | None], reasons: Sequence[str]) -> Mapping[str, Any]:
    """The first answer there is. HTTP 503 with the reasons if there is none."""
    found = next((answer for answer in answers if answer is not None), None)
    if found is None:
        raise HTTPException(503, "; ".join(reasons) or "no answer")
    return found


def _of(member: Member, text: str) -> str:
    return f"GPU {member.gpu.name}: {text}"
