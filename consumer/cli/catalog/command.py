"""``recallstream catalog``: build, publish, inspect, activate and roll back catalog versions."""

from pydantic import Field
from pydantic_settings import CliSubCommand, SettingsError, get_subcommand

from catalog_sync.settings import CatalogSettings
from consumer.cli.catalog.activate import Activate, Rollback
from consumer.cli.catalog.build import Build
from consumer.cli.catalog.publish import Publish
from consumer.cli.catalog.status import Status
from consumer.service.settings import LayeredSettings


class CatalogCommand(LayeredSettings):
    """Build, publish, inspect, activate and roll back catalogs.

    Where Redis is comes from --url, then RECALLSTREAM_CATALOG__URL, then the TOML file.
    """

    catalog: CatalogSettings = Field(default_factory=CatalogSettings, description="where catalogs come from")

    build: CliSubCommand[Build] = Field(description="make a catalog file of an item table")
    publish: CliSubCommand[Publish] = Field(description="upload a catalog file and make it current")
    status: CliSubCommand[Status] = Field(description="show versions and instances")
    activate: CliSubCommand[Activate] = Field(description="make an uploaded version current")
    rollback: CliSubCommand[Rollback] = Field(description="go back to the version before")

    def cli_cmd(self) -> None:
        command = get_subcommand(self, is_required=False)
        if not isinstance(command, Build | Publish | Status | Activate | Rollback):
            raise SettingsError("a sub-command is missing: build, publish, status, activate or rollback")
        command.run(self.catalog)
