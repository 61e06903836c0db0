"""From the output of a search to the answers of its requests."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from engine.errors import RequestError
from engine.request import RecallResult
from engine.runtime.prepared import PreparedRequest

Answer = RecallResult | RequestError


def answers_of(
    batch: Sequence[PreparedRequest],
    found: Mapping[str, NDArray[Any]],
    model: str,
    reused: Sequence[int],
    prefill_ms: float,
    decode_ms: float,
) -> Iterator[Answer]:
    """One answer per request of the batch. ``found``: a ``SearchOutput``'s arrays; nothing of them is kept.

    ``reused``: tokens of each context that were resident.
    """
    items, scores, counts, widths = (found[name] for name in ("items", "scores", "count", "widths"))
    for row, item in enumerate(batch):
        if widths[row, -1] < 0:
            yield RequestError("internal", "the model's scores are not numbers")
            continue
        request, catalog = item.request, item.catalog
        chosen = items[row, : counts[row]]
        yield RecallResult(
            items=catalog.ids_of(chosen),
            scores=scores[row, : counts[row]].copy(),
            model=model,
            catalog=catalog.version,
            beam_widths=tuple(widths[row].tolist()),
            exhausted=item.live_total - len(item.excluded) < request.top_k,
            truncated=item.prompt.truncated,
            context_tokens=len(item.prompt.tokens),
            reused_tokens=reused[row],
            unknown_items=item.prompt.unknown_items,
            prefill_ms=prefill_ms,
            decode_ms=decode_ms,
            sids=catalog.codes_of(chosen) if request.return_sids else None,
            fields=catalog.fields_of(request.return_fields, chosen) if request.return_fields else None,
        )
