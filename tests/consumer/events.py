"""An observer that remembers, for tests."""

import threading
from collections import Counter
from collections.abc import Sequence

from consumer.serving.observer import CloseReason, NullObserver, Reason, Rebalance, Replied, Stage
from consumer.wire.reply import status_of


class Events(NullObserver):
    """Counts what was reported: ``count["replied:ok"]``, and keeps the batches."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.batches: list[tuple[int, int, CloseReason]] = []
        self.seconds: list[float] = []
        self._lock = threading.Lock()

    def recalled(self, requests: int) -> bool:
        """The engine has answered so many."""
        return len(self.seconds) == len(self.batches) and sum(count for count, _, _ in self.batches) == requests

    def _add(self, name: str, by: int = 1) -> None:
        with self._lock:
            self.count[name] += by

    def received(self, records: int, size: int) -> None:
        self._add("received", records)

    def bad_record(self, code: str) -> None:
        self._add(f"bad:{code}")

    def clock_skew(self, seconds: float) -> None:
        self._add("skewed")

    def batch_closed(self, requests: int, tokens: int, reason: CloseReason) -> None:
        self.batches.append((requests, tokens, reason))

    def batch_finished(self, seconds: float, expected: float) -> None:
        self.seconds.append(seconds)

    def coalesced(self, requests: int) -> None:
        self._add("coalesced", requests)

    def turned_away(self, reason: Reason) -> None:
        self._add(f"turned_away:{reason}")

    def degraded(self, steps: Sequence[str]) -> None:
        for step in steps:
            self._add(f"degraded:{step}")

    def batch_failed(self, requests: int) -> None:
        self._add("batch_failed")

    def expired(self, stage: Stage) -> None:
        self._add(f"expired:{stage}")

    def replied(self, replies: Replied) -> None:
        self._add("replied:ok", len(replies.total_ms))
        for code in replies.errors:
            self._add(f"replied:{status_of(code)}")
        self._add("in_time", replies.in_time)
        self._add("confirmed", len(replies.confirmed_ms))

    def repeated(self) -> None:
        self._add("repeated")

    def dead_letter(self, reason: str) -> None:
        self._add(f"dead:{reason}")

    def late_result(self) -> None:
        self._add("late")

    def committed(self, ok: bool) -> None:
        self._add("committed" if ok else "commit_failed")

    def rebalanced(self, kind: Rebalance, partitions: int) -> None:
        self._add(kind, partitions)

    def offset_reset(self, skipped: int) -> None:
        self._add("reset")
        self._add("skipped", skipped)

    def paused(self, seconds: float) -> None:
        self._add("paused")

    def client_error(self, client: str, code: str) -> None:
        self._add(f"{client}:{code}")
