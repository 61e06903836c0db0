"""``catalog prune`` and ``catalog retire``: delete what nobody needs."""

from pydantic import Field
from pydantic_settings import CliPositionalArg

from catalog_sync.settings import CatalogSettings
from consumer.cli.catalog.on_redis import OnRedis
from consumer.cli.catalog.shown import say


class Prune(OnRedis):
    """Delete versions that no pointer, pin, instance, rollback or delta of a kept version needs."""

    history: int = Field(2, ge=0, description="older versions of every pointer to keep, beside those needed")
    dry_run: bool = Field(False, description="only say what would be deleted")

    def run(self, settings: CatalogSettings) -> None:
        from catalog_sync.prune import Pruner

        with self.publisher(settings) as publisher:
            pruned = Pruner(publisher.client, publisher.keys, publisher).prune(self.history, dry_run=self.dry_run)
        for version, reason in pruned.kept.items():
            say(f"kept {version}: {reason}")
        verb = "would be deleted" if self.dry_run else "deleted"
        for version, size in pruned.versions.items():
            say(f"{verb} {version}: {size:,} bytes")
        if pruned.orphans:
            say(f"{verb}: {pruned.orphans} chunks that a broken upload left")


class Retire(OnRedis):
    """Take a model's pointer away, so that `prune` may delete its versions; refused while an instance serves it."""

    model: CliPositionalArg[str] = Field(description="model id")

    def run(self, settings: CatalogSettings) -> None:
        from catalog_sync.prune import retire

        with self.publisher(settings) as publisher:
            retire(publisher, self.model)
        say(f"model {self.model} has no current version any more")
