"""Which requests run together."""

from collections.abc import Iterator, Sequence

from engine.runtime.prepared import PreparedRequest


def plan(prepared: Sequence[PreparedRequest], max_batch: int, free_pages: int) -> Iterator[list[PreparedRequest]]:
    """Sub-batches in order: at most ``max_batch`` requests and ``free_pages`` pages each; ``vocab`` requests apart.

    No request may need more than ``free_pages`` by itself.
    """
    for vocab in (False, True):
        batch: list[PreparedRequest] = []
        pages = 0
        for request in prepared:
            if (request.request.score == "vocab") != vocab:
                continue
            if batch and (len(batch) == max_batch or pages + request.pages > free_pages):
                yield batch
                batch, pages = [], 0
            batch.append(request)
            pages += request.pages
        if batch:
            yield batch
