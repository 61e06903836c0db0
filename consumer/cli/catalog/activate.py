"""``catalog activate`` and ``catalog rollback``: move the pointer."""

from pydantic import Field
from pydantic_settings import CliPositionalArg

from catalog_sync.settings import CatalogSettings
from consumer.cli.catalog.models import only_model
from consumer.cli.catalog.on_redis import OnRedis
from consumer.cli.catalog.shown import say_current


class Activate(OnRedis):
    """Make a version that is in Redis the current one of its model."""

    version: CliPositionalArg[str] = Field(description="version name, as `catalog status` shows it")

    def run(self, settings: CatalogSettings) -> None:
        with self.publisher(settings) as publisher:
            manifest, pointer = publisher.manifest(self.version), publisher.activate(self.version)
        say_current(manifest.model, pointer)


class Rollback(OnRedis):
    """Make the version before the current one current again; once more goes one further back."""

    model: str | None = Field(None, description="model id; may be left out if only one model has a current version")

    def run(self, settings: CatalogSettings) -> None:
        with self.publisher(settings) as publisher:
            model = self.model or only_model(publisher)
            pointer = publisher.rollback(model)
        say_current(model, pointer)
