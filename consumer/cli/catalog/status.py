"""``catalog status``: versions, pointers, and what the instances say."""

from typing import TYPE_CHECKING

from catalog_sync.settings import CatalogSettings
from consumer.cli.catalog.on_redis import OnRedis
from consumer.cli.catalog.shown import say, visible

if TYPE_CHECKING:
    from rich.table import Table

    from catalog_sync.layout import Manifest
    from catalog_sync.publisher import FleetStatus


class Status(OnRedis):
    """Show the versions in Redis, which one is current for each model, and what the instances say."""

    def run(self, settings: CatalogSettings) -> None:
        from rich.console import Console

        with self.publisher(settings) as publisher:
            status = publisher.status()
        console = Console()
        if not status.manifests:
            say("there is no version in Redis")
        else:
            console.print(_versions_table(status))
        if status.acks:
            console.print(_acks_table(status))
        for key in status.unreadable:
            say(f"unreadable: {key}")


def _versions_table(status: "FleetStatus") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table("model", "version", "label", "items", "MiB", "current", title="versions", title_justify="left")
    for manifest in status.manifests:
        cells = (manifest.model, manifest.version, manifest.label or "", f"{manifest.items:,}")
        table.add_row(*map(Text, map(visible, cells)), f"{manifest.size / 2**20:.1f}", _standing(manifest, status))
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
        table.add_row(*map(Text, map(visible, cells)), f"{age:.0f} s")
    return table
