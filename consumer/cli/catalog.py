"""``recallstream catalog``: build, publish, inspect, activate and roll back catalog versions."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import CliPositionalArg, CliSubCommand, SettingsError, get_subcommand

from catalog_sync.settings import CatalogSettings
from consumer.service.settings import LayeredSettings
from engine.errors import CatalogError

if TYPE_CHECKING:
    from rich.table import Table

    from catalog_sync.layout import Manifest, Pointer
    from catalog_sync.publisher import FleetStatus, Publisher
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
            progress.update(step, description=f"packing {catalog.trie.items:,} items")
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


class _OnRedis(BaseModel):
    """A sub-command that talks to Redis."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: SecretStr | None = Field(None, description="Redis; in the place of the setting catalog.url")
    namespace: str | None = Field(None, description="in the place of the setting catalog.namespace")

    @contextmanager
    def _publisher(self, settings: CatalogSettings) -> Iterator["Publisher"]:
        """Raises CatalogError ``redis`` for whatever Redis or the way to it has."""
        import redis

        from catalog_sync.connection import connect
        from catalog_sync.publisher import Publisher

        given = {name: value for name in ("url", "namespace") if (value := getattr(self, name)) is not None}
        merged = CatalogSettings.model_validate(dict(settings) | given)
        try:
            with connect(merged) as client:
                yield Publisher(client, merged.namespace)
        except redis.RedisError as error:
            raise CatalogError("redis", f"Redis: {error}") from error


class Publish(_OnRedis):
    """Upload a catalog file to Redis, read it back, and make it the current version of its model."""

    file: CliPositionalArg[Path] = Field(description="catalog file that `catalog build` wrote")
    label: str | None = Field(None, max_length=200, description="a name for people; the version is the content's hash")
    activate: bool = Field(True, description="make it current; without, only upload")

    def run(self, settings: CatalogSettings) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        from catalog_sync import blob
        from catalog_sync.layout import Manifest

        data = blob.read_file(self.file)
        try:
            manifest = Manifest.of(blob.decode(data), data, self.label)
        except CatalogError as error:
            raise CatalogError(error.reason, f"{self.file}: {error.message}") from error
        console = Console(stderr=True)
        bar = Progress(
            TextColumn("upload and verify"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        pointer = None
        with self._publisher(settings) as publisher, bar:
            task = bar.add_task("", total=2 * len(data))
            if self.activate:
                pointer = publisher.publish(manifest, data, lambda count: bar.advance(task, count))
            else:
                publisher.upload(manifest, data, lambda count: bar.advance(task, count))
        if pointer is not None:
            _say_current(manifest.model, pointer)
        else:
            _say(f"version {manifest.version} is uploaded, not activated")


class Status(_OnRedis):
    """Show the versions in Redis, which one is current for each model, and what the instances say."""

    def run(self, settings: CatalogSettings) -> None:
        from rich.console import Console

        with self._publisher(settings) as publisher:
            status = publisher.status()
        console = Console()
        if not status.manifests:
            _say("there is no version in Redis")
        else:
            console.print(_versions_table(status))
        if status.acks:
            console.print(_acks_table(status))
        for key in status.unreadable:
            _say(f"unreadable: {key}")


class Activate(_OnRedis):
    """Make a version that is in Redis the current one of its model."""

    version: CliPositionalArg[str] = Field(description="version name, as `catalog status` shows it")

    def run(self, settings: CatalogSettings) -> None:
        with self._publisher(settings) as publisher:
            manifest, pointer = publisher.manifest(self.version), publisher.activate(self.version)
        _say_current(manifest.model, pointer)


class Rollback(_OnRedis):
    """Make the version before the current one current again; once more goes one further back."""

    model: str | None = Field(None, description="model id; may be left out if only one model has a current version")

    def run(self, settings: CatalogSettings) -> None:
        with self._publisher(settings) as publisher:
            model = self.model or self._only_model(publisher)
            pointer = publisher.rollback(model)
        _say_current(model, pointer)

    def _only_model(self, publisher: "Publisher") -> str:
        models = list(publisher.status().pointers)
        if not models:
            raise CatalogError("no_previous", "no model has a current version")
        if len(models) > 1:
            raise CatalogError("model", f"name the --model; with a current version: {', '.join(models)}")
        return models[0]


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


def _say(line: str) -> None:
    from rich.console import Console

    Console().print(_visible(line), markup=False, highlight=False, soft_wrap=True)


def _visible(text: str) -> str:
    """Without characters that a terminal would obey: names come from files and from Redis."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _say_current(model: str, pointer: "Pointer") -> None:
    _say(f"version {pointer.version} is current for model {model} (generation {pointer.generation})")


def _build_summary(catalog: "Catalog", version: str, size: int, seconds: float) -> "Table":
    import numpy as np
    from rich.table import Table
    from rich.text import Text

    per_sid = np.diff(catalog.trie.item_begin[-1])
    table = Table(show_header=False)
    rows = {
        "version": version,
        "model": catalog.model,
        "levels": " x ".join(f"{level:,}" for level in catalog.trie.sizes),
        "items": f"{catalog.trie.items:,} ({np.count_nonzero(catalog.recallable):,} recallable)",
        "leaves (distinct SIDs)": f"{catalog.trie.leaves:,}",
        "SIDs of several items": f"{np.count_nonzero(per_sid > 1):,} (at most {per_sid.max():,} items on one)",
        "tags": f"{len(catalog.tags):,}",
        "fields": ", ".join(sorted(catalog.fields)) or "none",
        "bytes": f"{size:,}",
        "seconds": f"{seconds:.2f}",
    }
    for name, value in rows.items():
        table.add_row(name, Text(_visible(value)))
    return table


def _versions_table(status: "FleetStatus") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table("model", "version", "label", "items", "MiB", "current", title="versions", title_justify="left")
    for manifest in status.manifests:
        cells = (manifest.model, manifest.version, manifest.label or "", f"{manifest.items:,}")
        table.add_row(*map(Text, map(_visible, cells)), f"{manifest.size / 2**20:.1f}", _standing(manifest, status))
    return table


def _standing(manifest: "Manifest", status: "FleetStatus") -> str:
    pointer = status.pointers.get(manifest.model)
    if pointer is None:
        return ""
    if pointer.version == manifest.version:
        return f"generation {pointer.generation}"
    return "rollback goes here" if pointer.history[:1] == (manifest.version,) else ""


def _acks_table(status: "FleetStatus") -> "Table":
    import time

    from rich.table import Table
    from rich.text import Text

    table = Table(
        "instance", "model", "version", "generation", "state", "error", "age", title="instances", title_justify="left"
    )
    for ack in status.acks:
        age = max(0.0, time.time() - ack.time_ms / 1000)
        cells = (ack.instance, ack.model, ack.version or "none", str(ack.generation), ack.state, ack.error or "")
        table.add_row(*map(Text, map(_visible, cells)), f"{age:.0f} s")
    return table
