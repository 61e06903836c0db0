"""The Kafka client's own log: during an outage it says the same twenty times a second."""

import logging
import math
import re
import threading
import time
from collections.abc import Callable
from typing import Final

QUIET_S: Final = 10.0
_FORMAT: Final = "%s [%s] %s"
"""What confluent-kafka logs with; its arguments are facility, client and message."""
_TIMES: Final = re.compile(r" \(after \d+ms.*")


class OncePerPause(logging.Filter):
    """Lets a line of the client pass once in ``QUIET_S`` and counts those in between; other lines always pass."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[tuple[object, ...], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args
        if record.msg != _FORMAT or not isinstance(arguments, tuple) or len(arguments) != 3:
            return True
        facility, client, message = arguments
        left_out = self._left_out((facility, client, _TIMES.sub("", str(message))), self._clock())
        if left_out:
            record.args = facility, client, f"{message}; {left_out} like it left out"
        return left_out is not None

    def _left_out(self, key: tuple[object, ...], now: float) -> int | None:
        """How many like this one did not pass since the last that did; None: this one does not either."""
        with self._lock:
            last, left_out = self._seen.get(key, (-math.inf, 0))
            if now - last < QUIET_S:
                self._seen[key] = last, left_out + 1
                return None
            recent = {other: seen for other, seen in self._seen.items() if now - seen[0] < QUIET_S}
            self._seen = recent | {key: (now, 0)}
            return left_out
