"""``recallstream catalog``: build, publish, inspect, activate and roll back catalog versions."""

from typing import get_args

from pydantic import Field
from pydantic.fields import FieldInfo
from pydantic_settings import CliSubCommand, SettingsError, get_subcommand

from catalog_sync.settings import CatalogSettings
from consumer.cli.catalog.activate import Activate, Rollback
from consumer.cli.catalog.build import Build
from consumer.cli.catalog.delta import DeltaCommand, Rebase
from consumer.cli.catalog.follow import Follow
from consumer.cli.catalog.guard import Guard
from consumer.cli.catalog.keygen import Keygen
from consumer.cli.catalog.pin import PinCommand, Unpin
from consumer.cli.catalog.prune import Prune, Retire
from consumer.cli.catalog.publish import Publish
from consumer.cli.catalog.quarantine import Quarantine
from consumer.cli.catalog.status import Status
from consumer.service.settings import LayeredSettings
from consumer.stream.settings import KafkaSettings


class CatalogCommand(LayeredSettings):
    """Build, publish, watch and roll back catalogs.

    Where Redis is comes from --url, then RECALLSTREAM_CATALOG__URL, then the TOML file.
    """

    catalog: CatalogSettings = Field(default_factory=CatalogSettings, description="where catalogs come from")

    kafka: KafkaSettings = Field(default_factory=KafkaSettings, description="where `catalog follow` reads")

    build: CliSubCommand[Build] = Field(description="make a catalog file of an item table")
    publish: CliSubCommand[Publish] = Field(description="upload a catalog file and make it current")
    delta: CliSubCommand[DeltaCommand] = Field(description="add, replace and withdraw items of the current version")
    follow: CliSubCommand[Follow] = Field(description="publish the item changes of a Kafka topic")
    rebase: CliSubCommand[Rebase] = Field(description="write a version made by deltas out in full")
    status: CliSubCommand[Status] = Field(description="show versions and instances")
    activate: CliSubCommand[Activate] = Field(description="make an uploaded version current")
    rollback: CliSubCommand[Rollback] = Field(description="go back to the version before")
    pin: CliSubCommand[PinCommand] = Field(description="have a consumer group serve or keep a version")
    unpin: CliSubCommand[Unpin] = Field(description="undo a pin")
    quarantine: CliSubCommand[Quarantine] = Field(description="take a version away from every instance")
    guard: CliSubCommand[Guard] = Field(description="quarantine what enough instances found bad")
    prune: CliSubCommand[Prune] = Field(description="delete versions that nobody needs")
    retire: CliSubCommand[Retire] = Field(description="take a model's pointer away")
    keygen: CliSubCommand[Keygen] = Field(description="make a key pair for signed versions")

    def cli_cmd(self) -> None:
        command = get_subcommand(self, is_required=False)
        if not isinstance(command, SUB_COMMANDS):
            names = [name for name, field in type(self).model_fields.items() if _is_sub_command(field)]
            raise SettingsError(f"a sub-command is missing: {', '.join(names)}")
        if isinstance(command, Follow):
            command.run(self.catalog, self.kafka)
        else:
            command.run(self.catalog)


SUB_COMMANDS = (
    Build,
    Publish,
    DeltaCommand,
    Follow,
    Rebase,
    Status,
    Activate,
    Rollback,
    PinCommand,
    Unpin,
    Quarantine,
    Guard,
    Prune,
    Retire,
    Keygen,
)


def _is_sub_command(field: FieldInfo) -> bool:
    return any(kind in SUB_COMMANDS for kind in get_args(field.annotation))
