"""Which waiting requests of one user may share a run, and what each gets of its answer. Pure."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from consumer.histories.operation import UserKey
from engine.request import ItemIds, RecallRequest, RecallResult


def run_key(user: UserKey | None, request: RecallRequest) -> Hashable | None:
    """Equal for requests of one user that differ in nothing but history and ``top_k``. None: it shares no run."""
    if user is None or request.history is None:
        return None
    exclude = request.exclude
    return (
        user,
        request.beam,
        request.score,
        request.template,
        frozenset(request.context.items()),
        request.max_items_per_sid,
        exclude.tobytes() if isinstance(exclude, np.ndarray) else tuple(exclude),
        request.exclude_history,
        request.filter,
        request.catalog,
        request.return_sids,
        request.return_fields,
    )


def sharing(requests: Sequence[RecallRequest]) -> list[int]:
    """Of requests with one key, the last of which is the newest: places of those that its answer serves, itself too.

    One that must not see its own history again is served only if the newest one's history holds all of that.
    """
    newest = requests[-1]
    if not newest.exclude_history:
        return list(range(len(requests)))
    return [at for at, request in enumerate(requests) if request is newest or _holds(newest.history, request.history)]


def shared(requests: Sequence[RecallRequest]) -> RecallRequest:
    """The run: the newest (last) request, with as many items as the greediest one wants."""
    newest, most = requests[-1], max(request.top_k for request in requests)
    return newest if newest.top_k == most else replace(newest, top_k=most)


def cut(result: RecallResult, top_k: int) -> RecallResult:
    """The part of a shared answer that a request for ``top_k`` items gets."""
    if len(result.items) <= top_k:
        return replace(result, exhausted=False) if result.exhausted and len(result.items) == top_k else result
    return replace(
        result,
        items=result.items[:top_k],
        scores=result.scores[:top_k],
        exhausted=False,
        sids=None if result.sids is None else result.sids[:top_k],
        fields=None if result.fields is None else {name: values[:top_k] for name, values in result.fields.items()},
    )


def _holds(history: ItemIds | None, other: ItemIds | None) -> bool:
    if history is None or other is None:
        return False
    if isinstance(history, np.ndarray) and isinstance(other, np.ndarray):
        return bool(np.isin(other, history).all())
    return set(other) <= set(history)
