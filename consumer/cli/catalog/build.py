"""``catalog build``: an item table becomes a catalog file."""

from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import CliPositionalArg

from catalog_sync.settings import CatalogSettings
from consumer.cli.catalog.shown import visible
from engine.errors import CatalogError

if TYPE_CHECKING:
    from rich.table import Table

    from engine.catalog.catalog import Catalog


class Build(BaseModel):
    """Build a catalog file from an item table: Parquet (.parquet, .pq) or JSON lines.

    Columns: item_id, sid, and if wanted tags, rank, recallable; every further column is an item field.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: CliPositionalArg[Path] = Field(description="the item table")
    output: Path = Field(description="catalog file to write")
    model_dir: Path | None = Field(None, description="model directory: its sid.json names the model and its levels")
    model: str | None = Field(None, min_length=1, description="model id, with --levels in the place of --model-dir")
    levels: str | None = Field(None, description="codebook size of every level, separated by commas")

    @model_validator(mode="after")
    def _one_way_to_name_the_model(self) -> Self:
        by_hand = (self.model is not None, self.levels is not None)
        if by_hand != (self.model_dir is None,) * 2:
            raise ValueError("give --model-dir, or --model and --levels")
        if self.levels is not None:
            from engine.catalog.build import check_sizes

            try:
                check_sizes(self._sizes())
            except CatalogError as error:
                raise ValueError(f"--levels {self.levels}: {error.message}") from error
        return self

    def run(self, settings: CatalogSettings) -> None:
        import time

        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        from catalog_sync import blob
        from catalog_sync.source import load_source

        model, sizes = self._model()
        started = time.perf_counter()
        console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            step = progress.add_task(f"reading {self.source.name}", total=None)
            catalog = load_source(self.source, model=model, sizes=sizes)
            progress.update(step, description=f"packing {catalog.items:,} items")
            data = blob.encode(catalog)
            progress.update(step, description=f"writing {self.output.name}")
            try:
                blob.write_file(self.output, data)
            except OSError as error:  # it names the file beside it that is written first
                raise CatalogError("output", f"{self.output}: {error.strerror or error}") from error
        Console().print(_build_summary(catalog, blob.version_of(data), len(data), time.perf_counter() - started))

    def _model(self) -> tuple[str, tuple[int, ...]]:
        if self.model_dir is not None:
            from engine.model.spec import ModelSpec

            spec = ModelSpec.load(self.model_dir)
            return spec.id, tuple(level.size for level in spec.levels)
        return self.model or "", self._sizes()

    def _sizes(self) -> tuple[int, ...]:
        try:
            return tuple(int(size) for size in self.levels.split(",")) if self.levels is not None else ()
        except ValueError as error:
            raise ValueError(f"--levels {self.levels}: not integers separated by commas") from error


def _build_summary(catalog: "Catalog", version: str, size: int, seconds: float) -> "Table":
    import numpy as np
    from rich.table import Table
    from rich.text import Text

    per_sid = catalog.leaf_sizes()
    table = Table(show_header=False)
    rows = {
        "version": version,
        "model": catalog.model,
        "levels": " x ".join(f"{level:,}" for level in catalog.sizes),
        "items": f"{catalog.items:,} ({np.count_nonzero(catalog.recallable):,} recallable)",
        "leaves (distinct SIDs)": f"{catalog.leaves:,}",
        "SIDs of several items": f"{np.count_nonzero(per_sid > 1):,}",
        "most items on one SID": f"{per_sid.max():,}",
        "tags": f"{len(catalog.tags):,}",
        "fields": ", ".join(sorted(catalog.fields)) or "none",
        "bytes": f"{size:,}",
        "seconds": f"{seconds:.2f}",
    }
    for name, value in rows.items():
        table.add_row(name, Text(visible(value)))
    return table
