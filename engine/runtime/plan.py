"""Which requests run together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from engine.runtime.buckets import request_buckets, round_up, width_buckets
from engine.runtime.prepared import PreparedRequest
from engine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a batch may hold, at most.

    ``pages``: of all contexts; ``rows``: requests times the widest beam, both rounded up to ``request_sizes`` and
    ``widths``, as graphs are.
    """

    requests: int
    pages: int
    rows: int
    request_sizes: Sequence[int]
    widths: Sequence[int]

    @classmethod
    def of(cls, settings: EngineSettings, pages: int) -> Self:
        """``pages``: of the pool."""
        return cls(
            requests=settings.max_batch,
            pages=pages,
            rows=settings.max_batch_rows,
            request_sizes=request_buckets(settings.max_batch),
            widths=width_buckets(settings.max_width),
        )

    def allow(self, batch: Sequence[PreparedRequest]) -> bool:
        rows = round_up(self.request_sizes, len(batch)) * round_up(self.widths, max(max(r.widths) for r in batch))
        return (
            len(batch) <= self.requests and rows <= self.rows and sum(request.pages for request in batch) <= self.pages
        )


def plan(prepared: Sequence[PreparedRequest], limits: BatchLimits) -> Iterator[list[PreparedRequest]]:
    """Batches in order, each within the limits; ``vocab`` requests apart. Any one request must be."""
    for vocab in (False, True):
        batch: list[PreparedRequest] = []
        for request in prepared:
            if (request.request.score == "vocab") != vocab:
                continue
            if batch and not limits.allow([*batch, request]):
                yield batch
                batch = []
            batch.append(request)
        if batch:
            yield batch
