"""``catalog publish``: a catalog file becomes a version in Redis."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import CliPositionalArg

from catalog_sync.settings import CatalogSettings
from consumer.cli.catalog.canary_file import read_canaries
from consumer.cli.catalog.on_redis import OnRedis
from consumer.cli.catalog.shown import say, say_current
from engine.errors import CatalogError


class Publish(OnRedis):
    """Upload a catalog file to Redis, read it back, and make it the current version of its model."""

    file: CliPositionalArg[Path] = Field(description="catalog file that `catalog build` wrote")
    label: str | None = Field(None, max_length=200, description="a name for people; the version is the content's hash")
    activate: bool = Field(True, description="make it current; without, only upload")
    canary: Path | None = Field(
        None, description="JSON lines of requests that every instance tries on the version before it serves it"
    )
    key: Path | None = Field(None, description="PEM file of an Ed25519 private key to sign the manifest with")

    def run(self, settings: CatalogSettings) -> None:
        import msgspec
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        from catalog_sync import blob
        from catalog_sync.layout import Manifest
        from catalog_sync.signing import sign

        data = blob.read_file(self.file)
        try:
            manifest = Manifest.of(blob.decode(data), data, self.label)
        except CatalogError as error:
            raise CatalogError(error.reason, f"{self.file}: {error.message}") from error
        if self.canary is not None:
            canaries = read_canaries(self.canary, len(manifest.sizes))
            manifest = msgspec.structs.replace(manifest, canaries=canaries)
        if self.key is not None:
            manifest = sign(manifest, self.key)
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
        with self.publisher(settings) as publisher, bar:
            task = bar.add_task("", total=2 * len(data))
            if self.activate:
                pointer = publisher.publish(manifest, data, lambda count: bar.advance(task, count))
            else:
                publisher.upload(manifest, data, lambda count: bar.advance(task, count))
        if pointer is not None:
            say_current(manifest.model, pointer)
        else:
            say(f"version {manifest.version} is uploaded, not activated")
