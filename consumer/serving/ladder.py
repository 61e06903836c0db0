"""What a request is served with when time is short: all, a narrower beam, a shorter history as well. Pure."""

from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import get_args

import msgspec
import numpy as np

from consumer.serving.cost_model import Work
from consumer.serving.load_settings import LoadSettings, Step
from engine.request import ItemIds, RecallRequest


class Variant(msgspec.Struct, eq=False, gc=False):
    """A request as it would run, not to be changed. ``tokens``: to be computed, at most; ``given_up``: steps that
    changed something.
    """

    request: RecallRequest
    tokens: int
    work: Work
    given_up: tuple[Step, ...]


class Ladder:
    """Step by step, the ones that the settings allow and that the engine has to do with; step 0 gives up nothing."""

    def __init__(self, settings: LoadSettings) -> None:
        self._settings = settings
        self._steps = [step for step in get_args(Step) if step in settings.degrade and step != "last_reply"]

    @property
    def last(self) -> int:
        """The lowest step."""
        return len(self._steps)

    def variant(self, request: RecallRequest, tokens: int, step: int) -> Variant:
        """The request after ``step`` steps. ``tokens``: context tokens that have to be computed for all of it."""
        given_up: list[Step] = []
        for name in self._steps[:step]:
            before = request
            if name == "beam":
                request = _narrower(request, self._settings.narrow_to)
            elif request.history is not None:
                kept = ceil(len(request.history) * self._settings.shorten_to)
                context = max(tokens, 0 if request.session is None else len(request.history) * len(request.beam.widths))
                shorter = ceil(context * kept / max(1, len(request.history)))
                if kept < len(request.history) and shorter < tokens:  # else more is resident than would be saved
                    request, tokens = _shorter(request, kept), shorter
            if request is not before:
                given_up.append(name)
        return Variant(request, tokens, work_of(request, tokens), tuple(given_up))


def work_of(request: RecallRequest, tokens: int) -> Work:
    """Of the request as it is. ``tokens``: context tokens that have to be computed for it: others may be resident."""
    widths, history, context = request.beam.widths, request.history, tokens
    if history is not None and request.session is not None:
        least = len(history) * len(widths)  # an item has a token for each level
        if least > tokens:
            context = least
    rows = decoded_rows(widths)
    return Work(tokens, tokens * (context - tokens / 2), rows, rows * context)


@lru_cache(maxsize=256)
def decoded_rows(widths: tuple[int, ...]) -> float:
    """Beams that a decoded level has, on average: the last level's are not decoded any further."""
    decoded = widths[:-1] or widths
    return sum(decoded) / len(decoded)


def _narrower(request: RecallRequest, share: float) -> RecallRequest:
    widths = tuple(max(min(width, request.top_k), ceil(width * share)) for width in request.beam.widths)
    if widths == request.beam.widths:
        return request
    return replace(request, beam=replace(request.beam, widths=widths))


def _shorter(request: RecallRequest, kept: int) -> RecallRequest:
    """The newest part. What the request excludes by its history stays excluded, and the user's session as it is."""
    history = request.history
    if history is None or kept >= len(history):
        return request
    dropped, newest = history[: len(history) - kept], history[len(history) - kept :]
    exclude = joined(request.exclude, dropped) if request.exclude_history else request.exclude
    return replace(request, history=newest, exclude=exclude, session=None)


def joined(first: ItemIds, second: ItemIds) -> ItemIds:
    """Item ids of the same kind, one after the other; an empty list fits every kind."""
    if not len(first) or not len(second):
        return second if len(second) else first
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.concatenate([first, second])
    return [*map(str, first), *map(str, second)]
