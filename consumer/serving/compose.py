"""Which of the waiting requests make the next batch, so that its tightest deadline holds. Pure."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Generic

from consumer.serving.cost_model import NO_WORK, Work
from consumer.serving.ladder import Variant
from consumer.serving.order import T, UrgencyOrder, Waiting
from consumer.serving.pace import Pace
from consumer.serving.settings import BatchSettings


@dataclass(slots=True)
class Draft(Generic[T]):
    """``chosen``, and the ``variants`` they are served with. ``hopeless``: cannot be done in time, now or later.

    ``finish``: by when the chosen ones are done, at the latest; ``tightest``: of their deadlines.
    """

    chosen: list[Waiting[T]] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)
    hopeless: list[Waiting[T]] = field(default_factory=list)
    work: Work = NO_WORK
    tokens: int = 0
    finish: float = 0.0
    tightest: float = inf

    def add(self, waiting: Waiting[T], variant: Variant, finish: float) -> None:
        self.chosen.append(waiting)
        self.variants.append(variant)
        self.work += variant.work
        self.tokens += variant.tokens
        self.finish = finish
        self.tightest = min(self.tightest, waiting.item.deadline)

    def give_up(self, late: list[Waiting[T]]) -> None:
        """Without these; what remains is done no later."""
        self.hopeless += late
        before = list(zip(self.chosen, self.variants, strict=True))
        self.chosen, self.variants, self.work, self.tokens, self.tightest = [], [], NO_WORK, 0, inf
        for waiting, variant in before:
            if waiting not in late:
                self.add(waiting, variant, self.finish)


@dataclass(frozen=True, slots=True)
class Situation:
    """``start``: when the engine will be free, ``idle``: it is so now; ``step`` to ``last_step`` of the ladder.

    ``pressed``: requests are being turned away, so time that is saved serves another one. ``strict``: what cannot be
    done in time is not begun.
    """

    start: float
    idle: bool
    step: int
    last_step: int
    pressed: bool
    strict: bool


def compose(order: Iterable[Waiting[T]], now: Situation, pace: Pace, settings: BatchSettings) -> Draft[T]:
    """The most urgent requests that fit, all of one score mode.

    A request that would be late in this batch is served with less, if that helps. One that would make others late ends
    the batch, unless these are few and time is short: then a batch more would cost more answers than they are.
    """
    draft: Draft[T] = Draft()
    keys: set[Hashable] = set()
    for waiting in order:
        chosen, mode = draft.chosen, waiting.request.score
        if len(chosen) == settings.max_requests:
            break
        if (chosen and mode != chosen[0].request.score) or waiting.item.run_key in keys:
            continue
        variant, seconds = _in_time(waiting, draft.work, now, pace)
        if variant is None:
            draft.hopeless.append(waiting)
            continue
        if chosen and draft.tokens + variant.tokens > settings.max_tokens:
            break
        finish = now.start + pace.caution(mode) * seconds
        late = _made_late(draft, finish)
        if late:
            if not now.pressed or pace.worth_closing(mode, len(late), variant):
                break
            draft.give_up(late)
        draft.add(waiting, variant, finish)
        if waiting.item.run_key is not None:
            keys.add(waiting.item.run_key)
    if not draft.chosen and draft.hopeless and now.idle:
        # The prediction may be wrong, and the engine has no other work.
        trial = draft.hopeless.pop(0)
        draft.add(trial, trial.variant(now.last_step), now.start)
    return draft


def gather(order: UrgencyOrder[T], settings: BatchSettings, *, plain: bool) -> Draft[T]:
    """What ``compose`` chooses where all that waits is in time, whatever the batches: the most urgent that fit.

    ``plain``: all are of one score mode, and none may share a run.
    """
    chosen = order.first(settings.max_requests) if plain else _alike(order, settings.max_requests)
    tokens = sum([waiting.tokens for waiting in chosen])
    while tokens > settings.max_tokens and len(chosen) > 1:
        tokens -= chosen.pop().tokens
    return Draft(chosen, [*chosen], work=Work.total([waiting.work for waiting in chosen]), tokens=tokens)


def _alike(order: Iterable[Waiting[T]], most: int) -> list[Waiting[T]]:
    """The most urgent ones of one score mode, of those that share a run only the first."""
    chosen: list[Waiting[T]] = []
    keys: set[Hashable] = set()
    for waiting in order:
        if len(chosen) == most:
            break
        if (chosen and waiting.request.score != chosen[0].request.score) or waiting.item.run_key in keys:
            continue
        chosen.append(waiting)
        if waiting.item.run_key is not None:
            keys.add(waiting.item.run_key)
    return chosen


def _in_time(waiting: Waiting[T], before: Work, now: Situation, pace: Pace) -> tuple[Variant | None, float]:
    """The first step at which the request is done in time beside what is in the batch before it; the batch's seconds.

    None: there is no such step, and it is not to be begun then.
    """
    for step in range(now.step, now.last_step + 1):
        variant = waiting.variant(step)
        seconds = pace.batch(waiting.request.score, before + variant.work)
        if now.start + seconds <= waiting.item.deadline:
            return variant, seconds
    return (None if now.strict else variant), seconds


def _made_late(draft: Draft[T], finish: float) -> list[Waiting[T]]:
    """The chosen ones that would be done in time, but not if the batch took until ``finish``."""
    if draft.tightest >= finish:
        return []
    return [other for other in draft.chosen if draft.finish <= other.item.deadline < finish]
