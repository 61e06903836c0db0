"""``catalog pin`` and ``catalog unpin``: what a consumer group holds on to."""

from pydantic import Field
from pydantic_settings import CliPositionalArg

from catalog_sync.settings import CatalogSettings
from consumer.cli.catalog.on_redis import OnRedis
from consumer.cli.catalog.shown import say

GROUP = r"^[^\s{}:]{1,128}$"


class PinCommand(OnRedis):
    """Have a consumer group serve a version whatever becomes current, or keep it for requests that name it."""

    version: CliPositionalArg[str] = Field(description="version name, as `catalog status` shows it")
    group: str = Field(pattern=GROUP, description="consumer group; an instance's is kafka.group_id or catalog.group")
    keep: bool = Field(False, description="serve what is current, and keep this version resident beside it")

    def run(self, settings: CatalogSettings) -> None:
        from catalog_sync.pins import Pins

        with self.publisher(settings) as publisher:
            pins = Pins(publisher.client, publisher.keys)
            pins.keep(self.group, self.version) if self.keep else pins.serve(self.group, self.version)
        say(f"group {self.group} {'keeps' if self.keep else 'serves'} version {self.version}")


class Unpin(OnRedis):
    """Undo a group's pin of a version, or all of its pins."""

    version: CliPositionalArg[str | None] = Field(None, description="version name; without one, all")
    group: str = Field(pattern=GROUP, description="consumer group")

    def run(self, settings: CatalogSettings) -> None:
        from catalog_sync.pins import Pins

        with self.publisher(settings) as publisher:
            left = Pins(publisher.client, publisher.keys).remove(self.group, self.version)
        if left is None or left.serve is None:
            say(f"group {self.group} follows its model's pointer")
        if left is not None:
            say(f"group {self.group} still pins {', '.join(left.versions)}")
