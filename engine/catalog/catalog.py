"""One immutable catalog version on the host."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from engine.catalog.trie import Trie


@dataclass(frozen=True, slots=True)
class Catalog:
    """A catalog version. Items stand in leaf order; inside a leaf by (``rank``, item id).

    - ``version``: name derived from the content; ``model``: the ``id`` of the model's ``sid.json``
    - ``ids``: int64 ``[items]``, or a pyarrow string array
    - ``recallable``: bool ``[items]``; a false item keeps its SID (histories still resolve) and is never recalled
    - ``tags``: tag name to bool ``[items]``
    - ``fields``: item columns returned on ``return_fields``, each a pyarrow array ``[items]``
    """

    version: str
    model: str
    trie: Trie
    ids: NDArray[np.int64] | pa.Array
    recallable: NDArray[np.bool_]
    tags: Mapping[str, NDArray[np.bool_]]
    fields: Mapping[str, pa.Array]
