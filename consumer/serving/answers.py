"""What the client of a request is told once it has left the queue: served, too late, turned away."""

from collections.abc import Callable, Sequence

from consumer.serving.batch import TurnedAway
from consumer.serving.in_flight import InFlight, Job, Outcome
from consumer.serving.last_replies import LastReplies
from consumer.serving.observer import Reason, ServingObserver
from engine.errors import RequestError
from engine.request import RecallResult


class Answers:
    """``send`` takes them; ``last_replies`` is none unless requests may be answered with them. From any thread."""

    def __init__(
        self, send: Callable[[Sequence[Job]], None], last_replies: LastReplies | None, observer: ServingObserver
    ) -> None:
        self._send = send
        self._last_replies = last_replies
        self._observer = observer

    def served(self, outcomes: Sequence[Outcome]) -> None:
        """The engine's answers."""
        if self._last_replies is not None:
            for outcome in outcomes:
                item, answer = outcome.item, outcome.answer
                if isinstance(answer, RecallResult):
                    self._last_replies.put(item.user, item.asked, answer, item.admitted)
        self._send(outcomes)

    def expired(self, items: Sequence[InFlight]) -> None:
        """Their deadlines passed while they waited."""
        for _ in items:
            self._observer.expired("queue")
        late = RequestError("expired", "the deadline passed before the engine was free")
        self._send([Outcome(item, late, "queue") for item in items])

    def turned_away(self, gone: Sequence[TurnedAway[InFlight]]) -> None:
        """The user's last reply where that is allowed and there is one, else ``rejected``."""
        self._send([self._instead(each.item, "quota" if each.quota else "late") for each in gone])

    def _instead(self, item: InFlight, reason: Reason) -> Outcome:
        found = None
        if self._last_replies is not None:
            found = self._last_replies.find(item.user, item.asked)
        if found is not None:
            result, age = found
            return Outcome(item, result, "queue", ("last_reply",), age)
        self._observer.turned_away(reason)
        why = "other callers have a better right to the time there is" if reason == "quota" else "too much is waiting"
        return Outcome(
            item, RequestError("overloaded", f"it could not be answered before its deadline: {why}"), "queue"
        )
