"""From the engine's answers to what they say of the versions that gave them."""

from collections.abc import Mapping, Sequence

from catalog_sync.activation_guard import Tally
from engine.errors import ErrorCode, RequestError
from engine.request import RecallRequest, RecallResult

BLAMED: frozenset[ErrorCode] = frozenset({"internal", "bad_request"})
"""Errors that a catalog can cause: ids of another kind, fields that are gone, items that break the engine."""


def tallies(
    requests: Sequence[RecallRequest], answers: Sequence[RecallResult | RequestError], active: str | None
) -> Mapping[str, Tally]:
    """A tally per version. Requests that name a version do not count, nor does an answer that a filter left empty.

    ``active``: the version that errors are blamed on if the batch has no answer that names one.
    """
    found: dict[str, Tally] = {}
    errors = served = 0
    for request, answer in zip(requests, answers, strict=True):
        if request.catalog is not None:
            continue
        if isinstance(answer, RequestError):
            errors += answer.code in BLAMED
            served += answer.code in BLAMED
        elif len(answer.items) or request.filter is None:
            one = Tally(1, 0, int(not len(answer.items)))
            found[answer.catalog] = found.get(answer.catalog, Tally()) + one
    blamed = next(reversed(found), active)
    if errors and blamed is not None:
        found[blamed] = found.get(blamed, Tally()) + Tally(served, errors)
    return found
