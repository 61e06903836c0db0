"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T | None], timeout: float = 20.0, every: float = 0.01) -> T:
    """Call ``condition`` until it gives something true, and return that; fail after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"condition still false after {timeout} s")
        time.sleep(every)
