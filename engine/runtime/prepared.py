"""A request after admission: its catalog pinned, its prompt built, its exclusions resolved."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.catalog.looked_up import LookedUp
from engine.catalog.resident import ResidentCatalog
from engine.errors import RequestError
from engine.request import RecallRequest
from engine.runtime.prompts import BuiltPrompt, PromptBuilder
from engine.settings import PAGE_TOKENS

_NO_ITEMS = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """``place``: position in the caller's list.

    ``widths``: those asked for, no wider than the catalog's trie; ``excluded``: sorted distinct items that pass the
    filter; ``live``: the filter's running counts on the device.
    """

    place: int
    request: RecallRequest
    catalog: ResidentCatalog
    prompt: BuiltPrompt
    widths: tuple[int, ...]
    excluded: NDArray[np.int32]
    live: Tensor
    live_total: int

    @property
    def pages(self) -> int:
        return -(-len(self.prompt.tokens) // PAGE_TOKENS)


def prepare(
    place: int,
    request: RecallRequest,
    catalog: ResidentCatalog,
    prompts: PromptBuilder,
    before: LookedUp | None = None,
) -> PreparedRequest:
    """``before``: of the user's session.

    Raises RequestError ``bad_request``: ids of the wrong kind, an unknown field, an empty prompt.
    """
    if request.history is None:
        tokens = np.asarray(request.tokens, dtype=np.int32)
        prompt = BuiltPrompt(tokens, _NO_ITEMS, truncated=False, unknown_items=0)
    else:
        prompt = prompts.build(request.template, request.context, request.history, catalog, before)
    if not len(prompt.tokens):
        raise RequestError("bad_request", "the prompt is empty: no known history item and a template without tokens")
    if request.return_fields:
        catalog.fields_of(request.return_fields, _NO_ITEMS)
    return PreparedRequest(
        place=place,
        request=request,
        catalog=catalog,
        prompt=prompt,
        widths=tuple(map(min, request.beam.widths, map(len, catalog.code))),
        excluded=_excluded(request, catalog, prompt),
        live=catalog.live_counts(request.filter),
        live_total=catalog.live_total(request.filter),
    )


def _excluded(request: RecallRequest, catalog: ResidentCatalog, prompt: BuiltPrompt) -> NDArray[np.int32]:
    asked = catalog.lookup(request.exclude) if len(request.exclude) else _NO_ITEMS
    used = prompt.items if request.exclude_history else _NO_ITEMS
    if not len(asked) and not len(used):
        return _NO_ITEMS
    items = np.concatenate([asked[asked >= 0], used])
    items.sort()
    fresh = np.empty(len(items), dtype=np.bool_)
    fresh[:1] = True
    np.not_equal(items[1:], items[:-1], out=fresh[1:])
    items = items[fresh]
    return (
        items if catalog.live_total(request.filter) == catalog.items else items[catalog.passes(items, request.filter)]
    )
