"""Why a record is no request, and to whom that can be said."""

from collections.abc import Mapping
from typing import Literal, Protocol

from engine.errors import ErrorCode, RecallstreamError, RequestError

Codec = Literal["msgpack", "json"]


class Addressee(Protocol):
    """What a reply repeats of its request, and its codec. A ``WireRequest`` and a ``WireError`` both are one."""

    @property
    def request_id(self) -> str | None: ...
    @property
    def user_id(self) -> str | None: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def codec(self) -> Codec: ...


class WireError(RequestError):
    """The record is no valid request; carries what could still be read, so that an error reply can be addressed.

    ``event``: it says that it is one, so nobody awaits a reply.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        request_id: str | None = None,
        user_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        codec: Codec = "msgpack",
        event: bool = False,
    ) -> None:
        super().__init__(code, message)
        self.request_id = request_id
        self.user_id = user_id
        self.labels: Mapping[str, str] = labels or {}
        self.codec: Codec = codec
        self.event = event


class ReplyError(RecallstreamError):
    """A record of the reply topic is no reply that this client understands."""
