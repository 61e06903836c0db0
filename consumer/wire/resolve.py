"""From a request as it was sent to one that the engine takes: what it leaves out comes from the settings."""

from functools import lru_cache

from consumer.wire.fields import WireRequest
from consumer.wire.settings import RecallDefaults
from engine.errors import RequestError
from engine.request import NO_ITEMS, BeamPolicy, RecallRequest, TagFilter


class Resolver:
    """Fills in ``defaults`` for a model of ``levels`` SID levels."""

    def __init__(self, defaults: RecallDefaults, levels: int) -> None:
        self._levels = levels
        self._template, self._score = defaults.template, defaults.score
        self._top_k, self._width = defaults.top_k, defaults.width
        self._margin, self._min_width = defaults.margin, defaults.min_width
        self._usual = self._even(self._width)

    def resolve(self, wire: WireRequest) -> RecallRequest:
        """The history of a request that brings none is what it appends, until the one that is held is known.

        Without ``beam`` the default width is raised to ``top_k``; without ``top_k`` the default is lowered to the beam.
        Raises ``RequestError``.
        """
        beam = wire.beam
        if beam is None:
            top_k = wire.top_k or self._top_k
            policy = self._usual if top_k <= self._width else self._even(top_k)
        else:
            widths = beam.widths or (beam.width or 0,) * self._levels
            if len(widths) != self._levels:
                message = f"beam.widths: {len(widths)} given, the model has {self._levels} levels"
                raise RequestError("bad_request", message)
            policy = BeamPolicy(widths, beam.margin, beam.min_width or 1)
            top_k = wire.top_k or min(self._top_k, widths[-1])
        tags, tokens, history = wire.filter, wire.tokens, wire.history
        if history is None and tokens is None:
            history = NO_ITEMS if wire.append is None else wire.append
        return RecallRequest(  # by position, as names would take half as long again
            policy,
            top_k,
            history,
            tokens,
            wire.template or self._template,
            wire.context,
            wire.score or self._score,
            wire.max_items_per_sid,
            wire.exclude,
            wire.exclude_history,
            None if tags is None else TagFilter(tags.any or (), tags.all, tags.none),
            wire.catalog,
            wire.user_id,
            wire.return_sids,
            wire.return_fields,
        )

    def _even(self, width: int) -> BeamPolicy:
        return _policy(width, self._levels, self._margin, self._min_width)


@lru_cache(maxsize=64)
def _policy(width: int, levels: int, margin: float | None, min_width: int) -> BeamPolicy:
    return BeamPolicy((width,) * levels, margin, min_width)
