"""How long work takes, as decisions use it. Pure."""

from consumer.serving.cost_model import CostModel, Work, WorkSum
from consumer.serving.gains import Terms
from consumer.serving.ladder import Variant
from consumer.serving.settings import BatchSettings
from engine.request import Score

_CAUTION = 2.0
_MOST_ERROR = 0.25


class Pace:
    """A score mode of which too little was measured takes no time: nobody is turned away for it."""

    def __init__(self, costs: CostModel, settings: BatchSettings) -> None:
        self._costs, self._settings = costs, settings

    def batch(self, mode: Score, work: Work | WorkSum) -> float:
        """Expected seconds of a batch."""
        return self._costs.foreseen(mode, work)

    def batches(self, mode: Score, work: Work | WorkSum, count: int) -> float:
        """The same where it takes so many of them."""
        batch, token, token_key, row, row_key = self._costs.coefficients(mode)
        more = token * work.tokens + token_key * work.token_keys + row * work.rows + row_key * work.row_keys
        return count * batch + more

    def coefficients(self, mode: Score) -> Terms:
        """What ``batch`` goes by."""
        return self._costs.coefficients(mode)

    def caution(self, mode: Score) -> float:
        """So many times its expected seconds a batch hardly ever takes."""
        return 1 + _CAUTION * min(self._costs.error(mode), _MOST_ERROR)

    def part(self, mode: Score, variant: Variant) -> float:
        """Seconds of one request where batches are as full as they may be."""
        if not self._costs.trusted(mode):
            return 0.0
        room = max(1 / self._settings.max_requests, min(1.0, variant.tokens / self._settings.max_tokens))
        return self._costs.share(mode, variant.work) + room * self._costs.fixed(mode)

    def worth_closing(self, mode: Score, saved: int, variant: Variant) -> bool:
        """Whether a batch more costs less than the requests that it saves: each is worth one like ``variant``."""
        return saved * self._costs.share(mode, variant.work) >= self._costs.fixed(mode)
