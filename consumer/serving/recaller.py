"""The engine as the serving loop sees it, and the isolation of requests that make it raise."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from engine.errors import DeviceError, RequestError
from engine.request import RecallRequest, RecallResult

log = logging.getLogger(__name__)


class ModelInfo(Protocol):
    """What is asked of a model's description: one entry of ``levels`` per SID level."""

    @property
    def levels(self) -> Sequence[object]: ...


class Recaller(Protocol):
    """``engine.recall_engine.RecallEngine``; ``recall`` is called from one thread, the others from another."""

    @property
    def spec(self) -> ModelInfo: ...

    def validate(self, request: RecallRequest) -> None:
        """Raises RequestError for a request that can never be served."""

    def estimate_tokens(self, request: RecallRequest) -> int:
        """Context tokens, at most."""

    def recall(self, requests: Sequence[RecallRequest]) -> list[RecallResult | RequestError]:
        """One answer per request, in order. Raises DeviceError when the device is lost, anything else is a bug."""


def recall_isolated(
    engine: Recaller, requests: Sequence[RecallRequest], on_failure: Callable[[int], None]
) -> list[RecallResult | RequestError]:
    """One answer per request; if the engine raises, halves are tried until only the culprits are answered ``internal``.

    ``on_failure`` hears the size of every part that failed. Raises DeviceError.
    """
    try:
        answers = engine.recall(requests)
        if len(answers) != len(requests):
            raise RuntimeError(f"the engine gave {len(answers)} answers to {len(requests)} requests")
    except DeviceError:
        raise
    except Exception as error:
        on_failure(len(requests))
        if len(requests) == 1:
            log.exception("the engine failed on a request")
            return [RequestError("internal", f"the engine failed: {type(error).__name__}")]
        half = len(requests) // 2
        return [
            *recall_isolated(engine, requests[:half], on_failure),
            *recall_isolated(engine, requests[half:], on_failure),
        ]
    return answers
