"""Which model is meant."""

from typing import TYPE_CHECKING

from engine.errors import CatalogError

if TYPE_CHECKING:
    from catalog_sync.publisher import Publisher


def only_model(publisher: "Publisher") -> str:
    """The one model with a current version. Raises CatalogError ``no_version`` or ``model``."""
    models = list(publisher.status().pointers)
    if not models:
        raise CatalogError("no_version", "no model has a current version")
    if len(models) > 1:
        raise CatalogError("model", f"name the --model; with a current version: {', '.join(models)}")
    return models[0]
