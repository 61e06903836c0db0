"""Cheap checks of a request against what the model and the pool can do."""

import math

import numpy as np

from engine.errors import RequestError
from engine.model.spec import ModelSpec
from engine.request import RecallRequest
from engine.runtime.prompts import PromptBuilder
from engine.settings import EngineSettings

_SCORES = ("level", "vocab", "legal")


class Admission:
    """Raises RequestError for requests that this engine could never answer."""

    def __init__(self, spec: ModelSpec, settings: EngineSettings, prompts: PromptBuilder, max_tokens: int) -> None:
        """``max_tokens``: the longest context that can be served."""
        self._spec, self._settings, self._prompts = spec, settings, prompts
        self._max_tokens = max_tokens

    def check(self, request: RecallRequest) -> None:
        """Raises RequestError ``bad_request`` or ``too_large``."""
        if not 1 <= request.top_k <= self._settings.max_top_k:  # first: a default beam is as wide as top_k asks
            raise _bad(f"top_k {request.top_k} is not in 1 to {self._settings.max_top_k}")
        self._check_beam(request)
        self._check_prompt(request)
        if request.top_k > request.beam.widths[-1]:
            raise _bad(f"top_k {request.top_k} is above the last beam width {request.beam.widths[-1]}")
        if request.max_items_per_sid is not None and request.max_items_per_sid < 1:
            raise _bad(f"max_items_per_sid {request.max_items_per_sid} is below 1")
        if request.score not in _SCORES:
            raise _bad(f"score {request.score!r} is not one of {', '.join(_SCORES)}")

    def estimate_tokens(self, request: RecallRequest) -> int:
        """Upper bound of the request's context tokens. Raises RequestError for an unknown template."""
        if request.tokens is not None:
            return len(request.tokens)
        events = 0 if request.history is None else len(request.history)
        return self._prompts.upper_bound(request.template, events)

    def _check_beam(self, request: RecallRequest) -> None:
        beam, levels, widest = request.beam, len(self._spec.levels), self._settings.max_width
        if len(beam.widths) != levels:
            raise _bad(f"{len(beam.widths)} beam widths for {levels} levels")
        for width in beam.widths:
            if not 1 <= width <= widest:
                raise _bad(f"beam width {width} is not in 1 to {widest}")
        if beam.margin is not None and (math.isnan(beam.margin) or beam.margin < 0):
            raise _bad(f"margin {beam.margin} is negative or not a number")
        if beam.min_width < 1:
            raise _bad(f"min_width {beam.min_width} is below 1")

    def _check_prompt(self, request: RecallRequest) -> None:
        if (request.history is None) == (request.tokens is None):
            raise _bad("exactly one of history and tokens must be given")
        if request.tokens is None:
            self._prompts.check(request.template, request.context)
        else:
            self._check_tokens(request.tokens)
            if request.exclude_history:
                raise _bad("exclude_history needs a history")
        tokens = self.estimate_tokens(request)
        if tokens > self._max_tokens:
            raise RequestError("too_large", f"{tokens} context tokens; at most {self._max_tokens} fit")

    def _check_tokens(self, tokens: np.ndarray) -> None:
        vocabulary = self._spec.decoder.vocab_size
        if tokens.ndim != 1 or not len(tokens):
            raise _bad("tokens must be a list of at least one token id")
        if int(tokens.min()) < 0 or int(tokens.max()) >= vocabulary:
            raise _bad(f"a token is outside the vocabulary of {vocabulary}")


def _bad(message: str) -> RequestError:
    return RequestError("bad_request", message)
