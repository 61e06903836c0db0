"""Which shapes are captured at start."""

from engine.runtime.buckets import EXCLUDED, page_buckets, token_buckets
from engine.runtime.plan import BatchLimits
from engine.runtime.prefill_input import PrefillShape
from engine.runtime.search_input import SearchShape
from engine.settings import PAGE_TOKENS, EngineSettings


def prefill_shapes(settings: EngineSettings, max_tokens: int) -> list[PrefillShape]:
    """One for each number of tokens, for as many requests and as long contexts as there may be."""
    most = min(settings.graph_prefill_tokens, settings.max_batch_tokens)
    pages = -(-max_tokens // PAGE_TOKENS)
    shapes = [PrefillShape(tokens, settings.max_batch, pages) for tokens in token_buckets(most)]
    return shapes[: settings.max_graphs]


def search_shapes(
    settings: EngineSettings, limits: BatchLimits, levels: int, max_tokens: int, others: int
) -> list[SearchShape]:
    """The cheapest first, up to ``max_graphs`` with the ``others``: a large batch hides its launches best."""
    beams = [(width,) * levels for width in limits.widths] + [
        tuple(beams) for beams in settings.graph_beams if len(beams) == levels
    ]
    shapes = [
        SearchShape(requests, widths, widths[-1], pages, EXCLUDED, vocab)
        for vocab in ((False, True) if settings.graph_vocab else (False,))
        for widths in beams
        for requests in limits.request_sizes
        for pages in page_buckets(-(-max_tokens // PAGE_TOKENS))
        if requests * max(widths) <= settings.max_batch_rows
    ]
    return sorted(shapes, key=lambda shape: shape.work)[: settings.max_graphs - others]
