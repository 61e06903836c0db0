"""Canary requests from a file of JSON lines."""

from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import CatalogError

if TYPE_CHECKING:
    from catalog_sync.layout import Canary


def read_canaries(path: Path, levels: int) -> "tuple[Canary, ...]":
    """One object a line: ``request``, and if wanted ``at_least``, ``must_contain``, ``name``.

    Raises CatalogError ``canary`` that names the line of one that is no canary for a model of so many ``levels``.
    """
    import msgspec

    from catalog_sync.layout import MAX_CANARIES, Canary
    from consumer.serving.canaries import canary_request
    from consumer.wire.settings import RecallDefaults, WireLimits

    found = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise CatalogError("canary", f"{path}: {error.strerror or error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            canary = msgspec.json.decode(line, type=Canary)
            canary_request(canary, RecallDefaults(), WireLimits(), levels)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CatalogError("canary", f"{path}: line {number}: {error}") from error
        except CatalogError as error:
            raise CatalogError("canary", f"{path}: line {number}: {error.message}") from error
        found.append(canary)
    if not 0 < len(found) <= MAX_CANARIES:
        raise CatalogError("canary", f"{path}: {len(found)} canaries, there can be 1 to {MAX_CANARIES}")
    return tuple(found)
