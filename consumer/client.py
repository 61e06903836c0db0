"""A request-reply client: ``async with RecallClient("host:9092") as client: await client.recall(history=[1, 2])``."""

import asyncio
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Self, Unpack, cast

from consumer.stream.client_transport import ClientTransport, TransportError
from consumer.stream.settings import KafkaSettings
from consumer.wire.errors import ReplyError
from consumer.wire.headers import CORRELATION_ID, REPLY_PARTITION, REPLY_TOPIC, TRACEPARENT, Headers, RequestHeaders
from consumer.wire.outgoing import Ids, RequestOptions, encode_cancel, encode_event, encode_forget, encode_request
from consumer.wire.reply import RecallReply, decode_reply
from engine.errors import ErrorCode, RecallstreamError, RequestError

__all__ = ["RecallClient", "RecallError", "RecallReply", "RecallTimeoutError", "ReplyError", "TransportError"]


class RecallError(RequestError):
    """The service answered with an error, as ``code`` and ``message`` say; ``reply`` is the whole answer."""

    def __init__(self, reply: RecallReply) -> None:
        code, message = ("internal", "") if reply.error is None else (reply.error.code, reply.error.message)
        super().__init__(cast(ErrorCode, code), message)
        self.reply = reply


class RecallTimeoutError(RecallstreamError, TimeoutError):
    """No reply came in time. The request may still be served; its late reply is ignored."""


class RecallClient:
    """Sends requests and awaits their replies, many at a time; belongs to the event loop that entered it.

    ``kafka``: settings, or only the brokers as ``"host:port,..."``. ``reply_partition``: have replies sent to this
    partition of the reply topic and read only that one, where many clients share the topic; by default all its
    partitions are read. ``timeout`` is in seconds. Raises ``TransportError`` for settings that librdkafka refuses.
    """

    def __init__(
        self, kafka: KafkaSettings | str, *, reply_partition: int | None = None, timeout: float = 10.0
    ) -> None:
        if isinstance(kafka, str):
            kafka = KafkaSettings(bootstrap_servers=kafka)
        self._timeout = timeout
        self._pending: dict[bytes, asyncio.Future[bytes | None]] = {}
        self._failure: TransportError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._transport = ClientTransport(kafka, reply_partition, self._on_reply, self._on_failure)
        self._address: list[tuple[str, bytes]] = [(REPLY_TOPIC, kafka.reply_topic.encode())]
        if reply_partition is not None:
            self._address.append((REPLY_PARTITION, str(reply_partition).encode()))

    async def __aenter__(self) -> Self:
        """Connect, once. Raises ``TransportError``."""
        if self._loop is not None:
            raise RuntimeError("a client is entered once")
        self._loop = asyncio.get_running_loop()
        try:
            await asyncio.to_thread(self._transport.start)
        except BaseException:
            await asyncio.to_thread(self._transport.close)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._transport.close)
        self._fail(TransportError("the client was closed"))

    async def recall(
        self,
        *,
        request_id: str | None = None,
        timeout: float | None = None,
        traceparent: str | None = None,
        **options: Unpack[RequestOptions],
    ) -> RecallReply:
        """Send one request, whose fields are ``options``, and wait for its reply.

        Returns replies of status ``ok``, ``expired`` and ``rejected``; ``error`` raises ``RecallError``. Without
        ``deadline_ms`` the service may stop working on it when ``timeout`` (seconds) has passed. ``traceparent``, in
        W3C's form, is the span that the service's spans become children of. Raises
        ``RecallTimeoutError``, ``TransportError``, ``ReplyError``, or ``TypeError``, ``ValueError`` or
        ``OverflowError`` for options that cannot be written.
        """
        self._check_usable()
        patience = self._timeout if timeout is None else timeout
        options.setdefault("deadline_ms", int((time.time() + patience) * 1000))
        value = encode_request(request_id or str(uuid.uuid4()), options)
        user = options.get("user_id")
        key, trace = (None if text is None else text.encode() for text in (user, traceparent))
        reply = decode_reply(await self._exchange(key, value, trace, patience))
        if reply.status == "error":
            raise RecallError(reply)
        return reply

    async def send_event(self, user_id: str, items: Ids, *, ts: int | None = None) -> None:
        """Append ``items`` to the history that the service holds for the user; returns once the brokers have it.

        Raises as ``recall``, ``TransportError`` if it cannot be delivered.
        """
        await self._tell(user_id, encode_event(user_id, items, ts=ts))

    async def cancel(self, user_id: str, request_id: str) -> None:
        """Call a request of the user back, which is then answered ``expired`` if it has not started."""
        await self._tell(user_id, encode_cancel(user_id, request_id))

    async def forget(self, user_id: str) -> None:
        """Have the service erase all that it holds of the user."""
        await self._tell(user_id, encode_forget(user_id))

    async def _tell(self, user_id: str, value: bytes) -> None:
        """Write a record that has no reply."""
        self._check_usable()
        delivered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def fail(error: TransportError) -> None:
            if not delivered.done():
                delivered.set_exception(error)

        def succeed() -> None:
            if not delivered.done():
                delivered.set_result(None)

        self._transport.send(
            user_id.encode(), value, [], lambda error: self._call_soon(fail, error), lambda: self._call_soon(succeed)
        )
        try:
            async with asyncio.timeout(self._timeout):
                await delivered
        except TimeoutError:
            raise RecallTimeoutError(f"not delivered within {self._timeout:g} s") from None

    def _check_usable(self) -> None:
        if self._failure is not None or self._loop is None:
            raise self._failure or TransportError("the client is not connected: use it in `async with`")
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError("the client belongs to the event loop that entered it")

    async def _exchange(
        self, key: bytes | None, value: bytes, traceparent: bytes | None, timeout: float
    ) -> bytes | None:
        correlation_id = uuid.uuid4().bytes
        trace = [] if traceparent is None else [(TRACEPARENT, traceparent)]
        reply: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._pending[correlation_id] = reply
        try:
            self._transport.send(
                key,
                value,
                [(CORRELATION_ID, correlation_id), *self._address, *trace],
                lambda error: self._call_soon(self._undelivered, correlation_id, error),
            )
            async with asyncio.timeout(timeout):
                return await reply
        except TimeoutError:
            raise RecallTimeoutError(f"no reply within {timeout:g} s") from None
        finally:
            del self._pending[correlation_id]

    def _call_soon(self, action: Callable[..., None], *arguments: object) -> None:
        """From the transport's thread to the event loop's."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(action, *arguments)

    def _on_reply(self, headers: Headers, value: bytes | None) -> None:
        correlation_id = RequestHeaders.parse(headers).correlation_id
        if correlation_id in self._pending:  # others that share the topic, and repeats, end here
            self._call_soon(self._answer, correlation_id, value)

    def _answer(self, correlation_id: bytes, value: bytes | None) -> None:
        reply = self._pending.get(correlation_id)
        if reply is not None and not reply.done():
            reply.set_result(value)

    def _undelivered(self, correlation_id: bytes, error: TransportError) -> None:
        reply = self._pending.get(correlation_id)
        if reply is not None and not reply.done():
            reply.set_exception(error)

    def _on_failure(self, failure: TransportError) -> None:
        self._call_soon(self._fail, failure)

    def _fail(self, failure: TransportError) -> None:
        self._failure = failure
        for correlation_id in self._pending:
            self._undelivered(correlation_id, failure)
