"""What goes into the engine and what comes out, independent of any wire format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

ItemIds = NDArray[np.int64] | Sequence[str]
"""Item ids of one catalog: all int64 or all strings, whichever the catalog declares."""

Score = Literal["level", "vocab", "legal"]
"""What a step's probability is normalised over: the level's codebook, the vocabulary, the live children."""

NO_ITEMS: NDArray[np.int64] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class TagFilter:
    """An item passes if its own tags hold one of ``any`` (when given), every one of ``all`` and none of ``none``."""

    any: tuple[str, ...] = ()
    all: tuple[str, ...] = ()
    none: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BeamPolicy:
    """``widths``: beams after each level. ``margin``: drop beams so far below the best, not under ``min_width``."""

    widths: tuple[int, ...]
    margin: float | None = None
    min_width: int = 1


@dataclass(slots=True)
class RecallRequest:
    """One request, already decoded. Exactly one of ``history`` (oldest first) and ``tokens`` (int32 ``[n]``) is set.

    ``session``: the user, whose keys and values stay on the device for the next request; None: nothing stays.

    Not to be changed; only not frozen because a frozen one takes three times as long to make.
    """

    beam: BeamPolicy
    top_k: int
    history: ItemIds | None = None
    tokens: NDArray[np.int32] | None = None
    template: str = "default"
    context: Mapping[str, int | str] = field(default_factory=dict)
    score: Score = "level"
    max_items_per_sid: int | None = None
    exclude: ItemIds = field(default_factory=lambda: NO_ITEMS)
    exclude_history: bool = False
    filter: TagFilter | None = None
    catalog: str | None = None
    session: str | None = None
    return_sids: bool = False
    return_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecallResult:
    """The answer to one request.

    ``items``: best first, no duplicates, int64 ``[k]`` or strings. ``scores``: float32 ``[k]``, log-probabilities.
    ``sids``: int32 ``[k, levels]``. ``beam_widths``: beams really used, one per level. ``exhausted``: fewer live items
    than ``top_k`` exist under the request's filter and exclusions. ``reused_tokens``: of the context, those whose keys
    and values were resident. Times are milliseconds of the batch it ran in.
    """

    items: ItemIds
    scores: NDArray[np.float32]
    model: str
    catalog: str
    beam_widths: tuple[int, ...]
    exhausted: bool
    truncated: bool = False
    context_tokens: int = 0
    reused_tokens: int = 0
    unknown_items: int = 0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    sids: NDArray[np.int32] | None = None
    fields: Mapping[str, Sequence[object]] | None = None
