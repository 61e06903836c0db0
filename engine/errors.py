"""Errors of the engine. A request's error names the wire code; it never touches the request's neighbours."""

from typing import Literal, Self

ErrorCode = Literal[
    "bad_request",
    "unsupported_version",
    "too_large",
    "expired",
    "cancelled",
    "overloaded",
    "no_catalog",
    "unknown_catalog",
    "need_history",
    "internal",
]


class RecallstreamError(Exception):
    """Base of every error that this project raises on purpose."""


class RequestError(RecallstreamError):
    """One request cannot be answered with items; ``code`` is what its reply says."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message

    def __repr__(self) -> str:
        return f"RequestError({self.code!r}, {self.message!r})"

    def as_answer(self) -> Self:
        """This error without the frames that it came through and what caused it: they hold what it becomes part of, and
        tensors, which would then wait for the collector.
        """
        self.__context__ = self.__cause__ = None
        return self.with_traceback(None)


class ModelError(RecallstreamError):
    """The model directory cannot be served: a missing file, a bad ``sid.json``, an unsupported architecture."""


class CatalogError(RecallstreamError):
    """A catalog is malformed or does not fit the loaded model; the resident ones keep serving.

    ``reason`` is a short stable word for metrics and acks (``"checksum"``, ``"structure"``, ``"incompatible"``, ...).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class DeviceError(RecallstreamError):
    """The device is lost (sticky CUDA error): nothing more can be computed by this process."""
