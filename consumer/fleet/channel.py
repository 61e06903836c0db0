"""The pipe between the parent and one of its processes: questions go down, answers come up.

A process whose end of the pipe closes has lost its parent: it drains, so that nothing outlives the parent.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Literal

Question = Literal["health", "status", "metrics", "catalog"]
DRAIN = "drain"

log = logging.getLogger(__name__)


class Channel:
    """The parent's end. Has at most one question open: a process that does not read can never block the parent.

    Not thread-safe.
    """

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self._owed = False

    def put(self, question: Question) -> None:
        """Ask, unless an answer is still owed: a late one is dropped, and a missing one is not asked for again."""
        if self._owed:
            self.take(question, 0)
        if not self._owed:
            self._owed = self._send(question)

    def take(self, question: Question, timeout: float) -> Any | None:
        """The answer; none if it does not come within ``timeout`` seconds or the process has gone."""
        if not self._owed:
            return None
        try:
            if not self._connection.poll(timeout):
                return None
            self._owed = False
            answered, result = self._connection.recv()
        except (OSError, EOFError):
            return None
        return result if answered == question else None

    def drain(self) -> None:
        """Tell the process to finish what it has read, and end."""
        self._send(DRAIN)

    def close(self) -> None:
        self._connection.close()

    def _send(self, message: str) -> bool:
        try:
            self._connection.send(message)
        except OSError:
            return False  # it has ended, as its sentinel will say
        return True


def ask(channels: Sequence[Channel], question: Question, timeout: float) -> list[Any | None]:
    """The answers of all, none where there is none within ``timeout`` seconds; they are made side by side."""
    deadline = time.monotonic() + timeout
    for channel in channels:
        channel.put(question)
    return [channel.take(question, max(0.0, deadline - time.monotonic())) for channel in channels]


@contextmanager
def answering(
    connection: "Connection[Any, Any]", answers: Mapping[Question, Callable[[], Any]], drain: Callable[[], None]
) -> Iterator[None]:
    """The process's end: a thread answers, and calls ``drain`` when told to or when the parent has gone."""
    Thread(target=_answer, args=(connection, answers, drain), name="parent", daemon=True).start()
    yield


def _answer(
    connection: "Connection[Any, Any]", answers: Mapping[Question, Callable[[], Any]], drain: Callable[[], None]
) -> None:
    try:
        while True:
            message = connection.recv()
            if message == DRAIN:
                drain()
            else:
                connection.send((message, _result(answers[message])))
    except (OSError, EOFError):
        log.warning("the parent process has gone")
        drain()


def _result(answer: Callable[[], Any]) -> Any | None:
    try:
        return answer()
    except Exception:
        log.exception("a question of the parent could not be answered")
        return None
