"""Users' requests through Kafka, as a producer of the project would send them."""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from consumer.client import RecallClient, RecallError, RecallTimeoutError, ReplyError, TransportError
from consumer.demo.movielens import MovieLens
from consumer.wire.reply import RecallReply

TOP_K = 10


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request got: a reply, or why there is none. ``milliseconds``: from send to reply, at the client."""

    user: int
    reply: RecallReply | None
    fault: str | None
    milliseconds: float

    @property
    def items(self) -> tuple[int, ...]:
        return () if self.reply is None else tuple(int(item) for item in self.reply.items)

    @property
    def catalog(self) -> str | None:
        return None if self.reply is None else self.reply.catalog


class Sender(Protocol):
    """Sends one user's request and waits for what comes of it."""

    async def __call__(self, user: int) -> Answer: ...


class HistorySender:
    """Sends all of a user's history but the newest event, and asks for items that are not in it."""

    def __init__(self, client: RecallClient, data: MovieLens, timeout: float) -> None:
        self._client = client
        self._data = data
        self._timeout = timeout

    async def __call__(self, user: int) -> Answer:
        started = time.perf_counter()
        history = self._data.history(user)[:-1]
        reply, fault = None, None
        try:
            reply = await self._client.recall(
                user_id=f"user-{user}",
                history=history,
                top_k=TOP_K,
                exclude=history,  # exclude_history leaves out only the part that the model reads
                return_fields=["title"],
                timeout=self._timeout,
            )
            if reply.status != "ok":
                fault = f"{reply.status}: {reply.error.message if reply.error else ''}"
        except (RecallError, RecallTimeoutError, ReplyError, TransportError) as error:
            fault = str(error)
        return Answer(user, reply if fault is None else None, fault, (time.perf_counter() - started) * 1000)


class Load:
    """Keeps ``concurrency`` requests in the air, over ``users`` again and again, while the context is open."""

    def __init__(self, send: Sender, users: Sequence[int], concurrency: int) -> None:
        self.answers: list[Answer] = []
        self._send = send
        self._users = itertools.cycle(users)
        self._concurrency = concurrency
        self._tasks: list[asyncio.Task[None]] = []
        self._came = asyncio.Condition()

    async def until(self, enough: Callable[[Sequence[Answer]], bool], timeout: float) -> bool:
        """Wait until ``enough`` holds for the answers so far; False if it does not in ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout), self._came:
                await self._came.wait_for(lambda: enough(self.answers))
        except TimeoutError:
            return False
        return True

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._run()) for _ in range(self._concurrency)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if error is None and isinstance(result, Exception):
                raise result

    async def _run(self) -> None:
        for user in self._users:
            answer = await self._send(user)
            async with self._came:
                self.answers.append(answer)
                self._came.notify_all()
