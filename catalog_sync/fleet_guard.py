"""Makes fleet-wide what enough instances found: a bad version is quarantined, the pointer goes back."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event

import redis

from catalog_sync.ancestry import ancestors
from catalog_sync.fleet_quarantine import FleetQuarantine
from catalog_sync.layout import Ack, Pointer
from catalog_sync.publisher import FleetStatus
from engine.errors import CatalogError

BY = "guard"


@dataclass(frozen=True, slots=True)
class Quorum:
    """So many instances of a model, and such a share of its living ones, must have found a version bad."""

    count: int
    share: float


@dataclass(frozen=True, slots=True)
class Verdict:
    model: str
    version: str
    message: str


def verdicts(status: FleetStatus, quorum: Quorum) -> Iterator[Verdict]:
    """Versions to be quarantined: condemned by enough living instances, not quarantined yet. No I/O.

    A delta holds what is bad about the version that it changes: who condemned that one condemned both. So instances
    that blame different deltas of a chain agree on the later ones; of these the first is named.
    """
    living: dict[str, list[Ack]] = defaultdict(list)
    for ack in status.acks:
        living[ack.model].append(ack)
    parents = status.parents
    for model, acks in sorted(living.items()):
        found: dict[str, str] = {}
        for version in {version for ack in acks for version in ack.condemned}:
            line = (version, *ancestors(version, parents))
            against = {ack.instance: why for ack in acks if (why := _blamed(ack, line)) is not None}
            enough = len(against) >= quorum.count and len(against) >= quorum.share * len(acks)
            if enough and status.bad_part(version) is None:
                found[version] = _because(against, len(acks))
        for version, message in sorted(found.items()):
            if not any(each in found for each in ancestors(version, parents)):
                yield Verdict(model, version, message)


def _blamed(ack: Ack, line: Sequence[str]) -> str | None:
    """Why an instance condemned one of the versions, if it did."""
    return next((ack.condemned[version] for version in line if version in ack.condemned), None)


def _because(against: Mapping[str, str], living: int) -> str:
    first = min(against)
    return f"{len(against)} of {living} instances found it bad, {first}: {against[first]}"


class FleetGuard:
    """One pass at a time; it keeps nothing, so it may be killed, started again, and run twice at once."""

    def __init__(self, quarantine: FleetQuarantine, quorum: Quorum) -> None:
        self._quarantine, self._quorum = quarantine, quorum

    def once(self) -> list[str]:
        """What was done, in words. Redis errors pass through."""
        status = self._quarantine.publisher.status()
        return [*self._condemn(status), *self._retreat(status)]

    def _condemn(self, status: FleetStatus) -> Iterator[str]:
        for verdict in verdicts(status, self._quorum):
            try:
                pointer = self._quarantine.condemn(verdict.version, "condemned", verdict.message, BY)
            except CatalogError as error:
                yield f"version {verdict.version}: {verdict.message}; {error.message}"
            else:
                yield f"version {verdict.version} is quarantined: {verdict.message}"
                if pointer is not None:
                    yield _moved(verdict.model, pointer)

    def _retreat(self, status: FleetStatus) -> Iterator[str]:
        """Finish what somebody began who was killed after the quarantine."""
        for model in status.pointers:
            try:
                if pointer := self._quarantine.retreat(model):
                    yield _moved(model, pointer)
            except CatalogError as error:
                yield f"model {model}: {error.message}"

    def run(self, seconds: float, stop: Event, tell: Callable[[str], None]) -> None:
        """A pass every so many seconds until ``stop``; ``tell`` hears what changed. Faults of Redis are outlived."""
        told: list[str] = []
        while not stop.is_set():
            try:
                lines = self.once()
            except redis.RedisError as error:
                lines = [f"Redis: {error}"]
            for line in lines:
                if line not in told:
                    tell(line)
            told = lines
            stop.wait(seconds)


def _moved(model: str, pointer: Pointer) -> str:
    return f"version {pointer.version} is current for model {model} (generation {pointer.generation})"
