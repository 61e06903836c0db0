"""``recallstream sids``: semantic IDs for items that have embeddings."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import CliPositionalArg, CliSubCommand, SettingsError, get_subcommand

from catalog_sync.residual import Collisions
from engine.errors import CatalogError

if TYPE_CHECKING:
    from rich.table import Table

    from catalog_sync.residual import Sids


class Build(BaseModel):
    """Cluster embeddings, level by level, into SIDs, and write an item table for `catalog build`.

    The embeddings are the rows of a .npy file (items 0, 1, ...), or a Parquet table with item_id and a column of
    vectors; its other columns go along.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    embeddings: CliPositionalArg[Path] = Field(description="file of embeddings: .npy or Parquet")
    output: Path = Field(description="Parquet file to write")
    levels: str = Field("256,256,256", description="codes of every clustered level, separated by commas")
    collisions: Collisions = Field(
        "extra", description="items on one SID: told apart by one more level, or left to share it"
    )
    column: str = Field("embedding", min_length=1, description="the Parquet table's column of vectors")
    seed: int = Field(0, ge=0, le=2**32 - 1, description="of the clustering; the same one gives the same SIDs")

    def run(self) -> None:
        import os

        import pyarrow as pa
        import pyarrow.parquet as pq
        from rich.console import Console

        from catalog_sync.embeddings import read_embeddings
        from catalog_sync.residual import mini_batch_k_means, residual_sids

        sizes = self._sizes()
        source = read_embeddings(self.embeddings, self.column)
        with Console(stderr=True).status(f"clustering {len(source.vectors):,} embeddings"):
            sids = residual_sids(source.vectors, sizes, self.collisions, mini_batch_k_means(self.seed))
        table = source.items.drop_columns([n for n in ("sid", "rank") if n in source.items.column_names])
        table = table.append_column("sid", pa.array(list(sids.codes), pa.list_(pa.int32())))
        if self.collisions == "shared":
            table = table.append_column("rank", pa.array(sids.rank))
        partial = self.output.with_name(f".{self.output.name}.{os.getpid()}.partial")
        try:
            pq.write_table(table, partial)
            partial.replace(self.output)
        except OSError as error:
            raise CatalogError("output", f"{self.output}: {error.strerror or error}") from error
        finally:
            partial.unlink(missing_ok=True)
        console = Console()
        console.print(_levels_table(sids))
        for line in _collision_lines(sids, self.collisions):
            console.print(line, highlight=False, soft_wrap=True)
        levels = ",".join(map(str, sids.sizes))
        command = f"recallstream catalog build {self.output} --model NAME --levels {levels} --output FILE"
        console.print(f"next: {command}", highlight=False, markup=False, soft_wrap=True)

    def _sizes(self) -> tuple[int, ...]:
        try:
            return tuple(int(size) for size in self.levels.split(","))
        except ValueError as error:
            raise SettingsError(f"levels: {self.levels}: not integers separated by commas") from error


class SidsCommand(BaseModel):
    """Make semantic IDs for items that have embeddings."""

    build: CliSubCommand[Build] = Field(description="embeddings to SIDs, by residual k-means")

    def cli_cmd(self) -> None:
        command = get_subcommand(self, is_required=False)
        if not isinstance(command, Build):
            raise SettingsError("a sub-command is missing: build")
        command.run()


def _levels_table(sids: "Sids") -> "Table":
    from rich.table import Table

    table = Table("level", "codes", "used", "balance", "commonest code", "variance left", title="levels")
    for number, level in enumerate(sids.levels, 1):
        cells = (
            f"{level.size:,}",
            f"{level.used:,}",
            f"{level.balance:.3f}",
            f"{level.largest:.2%}",
            f"{level.left:.1%}",
        )
        table.add_row(str(number), *cells)
    return table


def _collision_lines(sids: "Sids", collisions: Collisions) -> list[str]:
    items = len(sids.codes)
    share = f"{sids.colliding:,} of {items:,} items ({sids.colliding / items:.2%})"
    lines = [f"{sids.distinct:,} distinct SIDs; {share} are not alone on theirs, at most {sids.most:,} on one"]
    told = f"told apart by level {len(sids.sizes)}" if collisions == "extra" else "share it, the nearest first (rank)"
    return [*lines, f"items on one SID {told}"]
