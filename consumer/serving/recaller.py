"""The engine as the serving loop sees it, and the isolation of requests that make it raise."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from engine.errors import DeviceError, RequestError
from engine.request import ItemIds, RecallRequest, RecallResult

Answer = RecallResult | RequestError

log = logging.getLogger(__name__)


class ModelInfo(Protocol):
    """What is asked of a model's description: one entry of ``levels`` per SID level; how a history is cut."""

    @property
    def levels(self) -> Sequence[object]: ...
    @property
    def max_history_items(self) -> int: ...
    @property
    def history_drop(self) -> int: ...


class Running(Protocol):
    """Requests in the engine."""

    @property
    def done(self) -> bool:
        """The engine has finished: ``collect`` will not wait."""

    def collect(self) -> list[Answer]:
        """Wait; one answer per request, in order. Raises DeviceError if the device is lost, anything else is a bug."""


class Recaller(Protocol):
    """``engine.recall_engine.RecallEngine``; one thread calls ``submit``, ``forget`` and ``drop``, any the others."""

    @property
    def spec(self) -> ModelInfo: ...

    def validate(self, request: RecallRequest) -> None:
        """Raises RequestError for a request that can never be served."""

    def check_ids(self, ids: ItemIds) -> None:
        """Raises RequestError for item ids of another kind than those of the active catalog."""

    def estimate_tokens(self, request: RecallRequest) -> int:
        """Context tokens, at most."""

    def submit(self, requests: Sequence[RecallRequest], *, beside: bool = True) -> Running:
        """Start on the requests; more may be submitted before they are collected.

        ``beside``: what is under way may take longer for it. Raises DeviceError when the device is lost, anything else
        is a bug.
        """

    def forget(self, user: str) -> None:
        """Erase what is kept of a user on the device."""

    def drop(self, lost: Callable[[str], bool]) -> None:
        """Let go of what is kept of these users on the device, who are served elsewhere now."""


class Attempt:
    """A batch in the engine. If the engine raises, halves are tried until only the culprits are answered ``internal``.

    ``on_failure`` hears the size of every part that failed. ``failed``: the engine raised, so it took longer.
    """

    def __init__(
        self,
        engine: Recaller,
        requests: Sequence[RecallRequest],
        on_failure: Callable[[int], None],
        *,
        beside: bool = True,
    ) -> None:
        """Submit it. Raises DeviceError."""
        self._engine, self._requests, self._on_failure = engine, requests, on_failure
        self._started: Running | Exception
        self.failed = False
        try:
            self._started = engine.submit(requests, beside=beside)
        except DeviceError:
            raise
        except Exception as error:
            self._started = error

    @property
    def done(self) -> bool:
        """The engine needs no more time for it."""
        return isinstance(self._started, Exception) or self._started.done

    def forget(self, user: str) -> None:
        """The engine has forgotten this user: what is tried again leaves nothing there."""
        self._requests = [
            replace(request, session=None) if request.session == user else request for request in self._requests
        ]

    def answers(self) -> list[Answer]:
        """Wait; one answer per request, in order. Raises DeviceError."""
        try:
            if isinstance(self._started, Exception):
                raise self._started
            answers = self._started.collect()
            if len(answers) != len(self._requests):
                raise RuntimeError(f"the engine gave {len(answers)} answers to {len(self._requests)} requests")
        except DeviceError:
            raise
        except Exception as error:
            self.failed = True
            self._on_failure(len(self._requests))
            if len(self._requests) == 1:
                log.exception("the engine failed on a request")
                return [RequestError("internal", f"the engine failed: {type(error).__name__}")]
            half = len(self._requests) // 2
            parts = self._requests[:half], self._requests[half:]
            return [answer for part in parts for answer in Attempt(self._engine, part, self._on_failure).answers()]
        return answers
