"""Has a staged catalog version answer its canary requests on the device thread, and judges the answers."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from threading import Event
from typing import cast

import numpy as np

from catalog_sync.layout import Canary
from consumer.serving.recaller import Answer
from consumer.wire.outgoing import RequestOptions, encode_request
from consumer.wire.request import decode_whole
from consumer.wire.resolve import Resolver
from consumer.wire.settings import RecallDefaults, WireLimits
from engine.errors import CatalogError, RequestError
from engine.request import RecallRequest

BATCH = 8
"""So many canaries go between two batches, so that requests wait for a short one."""

_SLICE_S = 0.1  # how soon a stop is seen

Ask = Callable[[Sequence[RecallRequest]], "Future[list[Answer]]"]


def canary_request(
    canary: Canary, defaults: RecallDefaults, limits: WireLimits, levels: int, version: str | None = None
) -> RecallRequest:
    """The request of a canary, pinned to ``version``. Raises CatalogError ``canary`` for one that is no request."""
    if unknown := canary.request.keys() - RequestOptions.__annotations__.keys():
        raise CatalogError("canary", f"{name_of(canary)}: {min(unknown)} is no field of a request")
    options = cast(RequestOptions, canary.request | ({"catalog": version} if version is not None else {}))
    try:
        return Resolver(defaults, levels).resolve(decode_whole(encode_request("canary", options), limits))
    except (RequestError, TypeError, ValueError, OverflowError) as error:
        raise CatalogError("canary", f"{name_of(canary)} is no request: {error}") from error


def judge(canary: Canary, answer: Answer) -> None:
    """Raises CatalogError ``canary`` for an answer that is not as expected, ``busy`` if there was no room for it."""
    if isinstance(answer, RequestError):
        reason = "busy" if answer.code == "overloaded" else "canary"
        raise CatalogError(reason, f"{name_of(canary)} is answered with {answer.code}: {answer.message}")
    items = answer.items.tolist() if isinstance(answer.items, np.ndarray) else list(answer.items)
    if len(items) < canary.at_least:
        raise CatalogError("canary", f"{name_of(canary)} has {len(items)} items, not at least {canary.at_least}")
    if missing := [item for item in canary.must_contain if item not in items]:
        raise CatalogError("canary", f"{name_of(canary)}: item {missing[0]} is not among its {len(items)}")


def name_of(canary: Canary) -> str:
    return f"canary {canary.name!r}" if canary.name else "a canary"


class CanaryRunner:
    """``AskCanaries`` of the catalog watcher. ``ask`` has the engine answer, within ``seconds`` for all of them."""

    def __init__(self, ask: Ask, defaults: RecallDefaults, limits: WireLimits, levels: int, seconds: float) -> None:
        self._ask, self._defaults, self._limits, self._levels = ask, defaults, limits, levels
        self._seconds = seconds

    def __call__(self, version: str, canaries: Sequence[Canary], stop: Event) -> None:
        deadline = time.monotonic() + self._seconds
        for begin in range(0, len(canaries), BATCH):
            some = canaries[begin : begin + BATCH]
            requests = [canary_request(each, self._defaults, self._limits, self._levels, version) for each in some]
            for canary, answer in zip(some, self._answers(requests, deadline, stop), strict=True):
                judge(canary, answer)

    def _answers(self, requests: Sequence[RecallRequest], deadline: float, stop: Event) -> list[Answer]:
        asked = self._ask(requests)
        while not stop.is_set() and time.monotonic() < deadline:
            try:
                return asked.result(_SLICE_S)
            except TimeoutError:
                continue
            except CancelledError:
                break
        asked.cancel()
        raise CatalogError("busy", f"the engine did not answer {len(requests)} canaries within {self._seconds:g} s")
