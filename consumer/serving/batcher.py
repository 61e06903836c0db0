"""Gathers admitted requests into micro-batches. Pure: the caller brings the time and the lock."""

from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from math import ceil, inf
from typing import Generic

from consumer.serving.backlog import Backlog
from consumer.serving.batch import Batch, TurnedAway
from consumer.serving.coalesce import shared, sharing
from consumer.serving.compose import Draft, Situation, compose, gather
from consumer.serving.cost_model import CostModel, Work
from consumer.serving.ladder import Ladder, Variant
from consumer.serving.load_settings import LoadSettings
from consumer.serving.observer import CloseReason
from consumer.serving.order import T, Waiting, arrivals
from consumer.serving.pace import Pace
from consumer.serving.quotas import Loser, in_time, losers
from consumer.serving.settings import BatchSettings

_SMOOTHING = 0.2
_LOOKS = 32


class Batcher(Generic[T]):
    """Earliest slack first, within priority. The window is anchored at the oldest waiting request.

    ``busy_until``: when the engine will have done what it has, as predicted; the caller keeps it.
    """

    def __init__(self, settings: BatchSettings, load: LoadSettings, costs: CostModel) -> None:
        self.busy_until = 0.0
        self.step = 0
        self._settings, self._load = settings, load
        self._costs, self._pace, self._ladder = costs, Pace(costs, settings), Ladder(load)
        self._backlog: Backlog[T] = Backlog()
        self._keys = 0
        self._turned_away: list[TurnedAway[T]] = []
        self._pressed_until = 0.0
        self._unhurried = False
        self._longest = 0.0
        self._added = 0
        self._typical = 0.0

    def __len__(self) -> int:
        return len(self._backlog)

    @property
    def tokens(self) -> int:
        """Context tokens that wait."""
        return self._backlog.tokens

    @property
    def full(self) -> bool:
        """A batch is due that no waiting can make larger."""
        return len(self._backlog) >= self._settings.max_requests or self.tokens >= self._settings.max_tokens

    def add(self, items: Sequence[T]) -> None:
        """Requests that were read together."""
        longest = self._longest if self._backlog else 0.0
        for item in items:
            if (time := item.deadline - item.admitted) > longest:
                longest = time
        self._longest = longest
        come = arrivals(items, self._keys, self._ladder, self._pace)
        self._keys += len(come)
        self._added += len(come)
        self._backlog.add(come)

    def relieve(self, now: float) -> None:
        """Turn away what cannot be answered in time beside what came with it. After requests were added.

        Looking at all that waits takes its time, so it is done once for every few per cent more.
        """
        if self._load.turn_away and self._added * _LOOKS >= len(self._backlog):
            _, lost = self._foresee(now, self._ladder.last)
            self._turn_away(lost)

    def turned_away(self) -> list[TurnedAway[T]]:
        """What was turned away since this was last asked."""
        gone, self._turned_away = self._turned_away, []
        return gone

    def take(self, now: float, *, idle: bool) -> Batch[T] | None:
        """The next batch if it is due. ``idle``: the engine has nothing to do, so waiting would gain nothing."""
        reason = self._due(now, idle)
        if reason is None:
            return None
        self.step, lost = self._foresee(now, 0)
        self._turn_away(lost)
        draft = self._draft(now)
        self._turn_away([Loser(waiting, quota=False) for waiting in draft.hopeless])
        return self._batch(draft, reason) if draft.chosen else None

    def _draft(self, now: float) -> Draft[T]:
        if self._unhurried:
            draft = gather(self._backlog.order, self._settings, plain=self._backlog.plain)
            if self._is_safe(draft, max(now, self.busy_until)):
                return draft
        situation = Situation(
            start=max(now, self.busy_until),
            idle=self.busy_until <= now,
            step=self.step,
            last_step=self._ladder.last,
            pressed=self.step > 0 or now < self._pressed_until,
            strict=self._load.turn_away,
        )
        return compose(self._backlog.order, situation, self._pace, self._settings)

    def _is_safe(self, draft: Draft[T], start: float) -> bool:
        """Even where it takes as long as a batch hardly ever does, nothing that waits is late by it."""
        mode, tightest = draft.chosen[0].request.score, self.next_deadline()
        finish = start + self._pace.caution(mode) * self._pace.batch(mode, draft.work)
        return tightest is None or finish <= tightest

    def due_in(self, now: float) -> float | None:
        """Seconds until the next batch is due by its window or a deadline; None while nothing waits."""
        if not self._backlog:
            return None
        return max(0.0, min(self._window_end(), self._latest_start()) - now)

    def expire(self, now: float) -> list[T]:
        """Remove and return every request whose deadline has passed."""
        return [waiting.item for waiting in self._backlog.expired(now)]

    def next_deadline(self) -> float | None:
        """The tightest deadline of a waiting request."""
        return self._backlog.tightest()

    def remove(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Remove and return the waiting requests that ``unwanted`` picks."""
        gone = [waiting for waiting in self._backlog if unwanted(waiting.item)]
        self._backlog.remove(gone)
        return [waiting.item for waiting in gone]

    # --- what can be done in time ---------------------------------------------------------------------------------

    def _foresee(self, now: float, first_step: int) -> tuple[int, list[Loser[T]]]:
        """The first step of the ladder at which nobody loses, else the last one and who loses there."""
        self._added = 0
        start = max(now, self.busy_until)
        self._unhurried = self._all_in_time(start, now)
        if self._unhurried:
            return 0, []
        heads, due, last = self._heads(), self._due_at(now), self._ladder.last
        for step in range(first_step, last):
            if in_time(heads, start, self._parts(step), due):
                return step, []
        if not self._load.turn_away:
            return last, []
        lost = losers(heads, start, self._parts(last), due, self._load.shares)
        if self.busy_until <= now and len(lost) == len(heads):  # an idle engine tries
            lost.remove(min(lost, key=lambda each: each.waiting.rank))
        return last, lost

    def _all_in_time(self, start: float, now: float) -> bool:
        """Quickly and carefully: even the tightest deadline lies behind all the work."""
        tightest = self.next_deadline()
        if tightest is None:
            return True
        by_requests = len(self._backlog) / self._settings.max_requests
        by_tokens = self.tokens / self._settings.max_tokens
        batches = ceil(by_requests + 2 * by_tokens)  # a batch that tokens close may be half empty
        seconds = sum([self._pace.batches(mode, work, batches) for mode, work in self._backlog.work.items()])
        return start + seconds <= tightest - self._load.headroom * self._longest - self._grain(now)

    def _heads(self) -> list[Waiting[T]]:
        """What waits, in its order; of those that share a run only the first, with which the others are done."""
        heads: list[Waiting[T]] = []
        seen: set[Hashable] = set()
        for waiting in self._backlog.order:
            key = waiting.item.run_key
            if key is None or key not in seen:
                heads.append(waiting)
                seen.add(key)
        return heads

    def _parts(self, step: int) -> Callable[[Waiting[T]], float]:
        """Seconds of a request at this step."""
        return lambda waiting: self._pace.part(waiting.request.score, waiting.variant(step))

    def _due_at(self, now: float) -> Callable[[Waiting[T]], float]:
        headroom, grain = self._load.headroom, self._grain(now)
        return lambda waiting: (
            waiting.item.deadline - headroom * (waiting.item.deadline - waiting.item.admitted) - grain
        )

    def _grain(self, now: float) -> float:
        """Where time is short batches are full, and the first of a batch waits for its last."""
        return self._typical if now < self._pressed_until else 0.0

    def _turn_away(self, lost: Sequence[Loser[T]]) -> None:
        if not lost:
            return
        self._pressed_until = max(self._pressed_until, *(each.waiting.item.deadline for each in lost))
        self._turned_away += [TurnedAway(each.waiting.item, each.quota) for each in lost]
        self._backlog.remove([each.waiting for each in lost])

    # --- the batch ------------------------------------------------------------------------------------------------

    def _batch(self, draft: Draft[T], reason: CloseReason) -> Batch[T]:
        others = self._joined(draft) if self._backlog.shares else {}
        chosen, variants, mode = draft.chosen, draft.variants, draft.chosen[0].request.score
        work = Work.total([variant.work for variant in variants]) if others else draft.work
        gone = [*chosen, *chain(*others.values())] if others else chosen
        self._backlog.remove(gone, draft.work if variants == gone else None)
        seconds = self._costs.predict(mode, work)
        self._typical += _SMOOTHING * (seconds - self._typical)
        foreseen = seconds if self._costs.trusted(mode) else 0.0
        newest = [waiting.item for waiting in chosen]
        older = {at: tuple([waiting.item for waiting in some]) for at, some in others.items()}
        return Batch(newest, variants, older, work, draft.tokens, reason, mode, seconds, foreseen)

    def _joined(self, draft: Draft[T]) -> dict[int, list[Waiting[T]]]:
        """Have the newest of each run in the place of the one that was chosen. Returns the others, by that place."""
        others: dict[int, list[Waiting[T]]] = {}
        for at, waiting in enumerate(draft.chosen):
            *older, newest = self._served_with(waiting)
            if older:
                draft.chosen[at] = newest
                draft.variants[at] = self._shared([*older, newest], draft.variants[at])
                others[at] = older
        return others

    def _served_with(self, waiting: Waiting[T]) -> list[Waiting[T]]:
        """Those that the answer to the newest of this run serves, oldest first."""
        group = self._backlog.run_of(waiting)
        served = [group[at] for at in sharing([each.item.asked for each in group])]
        return served if waiting in served else [waiting]

    def _shared(self, served: Sequence[Waiting[T]], instead_of: Variant) -> Variant:
        """The newest one, as far down the ladder as ``instead_of``."""
        request, tokens = shared([each.item.asked for each in served]), served[-1].item.tokens
        for step in range(self._ladder.last + 1):
            variant = self._ladder.variant(request, tokens, step)
            if len(variant.given_up) >= len(instead_of.given_up):
                break
        return variant

    def _due(self, now: float, idle: bool) -> CloseReason | None:
        if not self._backlog:
            return None
        if len(self._backlog) >= self._settings.max_requests:
            return "requests"
        if self.tokens >= self._settings.max_tokens:
            return "tokens"
        if idle:
            return "idle"
        if now >= self._window_end():
            return "window"
        return "deadline" if now >= self._latest_start() else None

    def _window_end(self) -> float:
        return next(iter(self._backlog)).item.admitted + self._settings.window_ms / 1000

    def _latest_start(self) -> float:
        """When the engine must start on all that waits to meet the tightest deadline."""
        tightest = self.next_deadline()
        if tightest is None:
            return inf
        return tightest - sum(
            self._pace.caution(mode) * self._pace.batch(mode, work) for mode, work in self._backlog.work.items()
        )
