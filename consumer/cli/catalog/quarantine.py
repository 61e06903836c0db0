"""``catalog quarantine``: by hand what the guard does, and its undoing."""

from pydantic import Field
from pydantic_settings import CliPositionalArg

from catalog_sync.settings import CatalogSettings
from consumer.cli.catalog.on_redis import OnRedis
from consumer.cli.catalog.shown import say, say_current
from engine.errors import CatalogError


class Quarantine(OnRedis):
    """Take a version away from every instance: its model goes back to the version before."""

    version: CliPositionalArg[str] = Field(description="version name, as `catalog status` shows it")
    reason: str = Field("by hand", min_length=1, max_length=500, description="why, for whoever looks later")
    release: bool = Field(False, description="let it be activated again, also where an instance condemned it")

    def run(self, settings: CatalogSettings) -> None:
        import getpass

        with self.quarantine(settings) as quarantine:
            if self.release:
                quarantine.release(self.version)
                say(f"version {self.version} may be activated again")
                return
            model = quarantine.publisher.manifest(self.version).model
            try:
                pointer = quarantine.condemn(self.version, "operator", self.reason, getpass.getuser())
            except CatalogError as error:
                if error.reason in ("no_previous", "conflict"):
                    say(f"version {self.version} is quarantined; instances that serve it serve on")
                raise
            say(f"version {self.version} is quarantined")
            if pointer is not None:
                say_current(model, pointer)
