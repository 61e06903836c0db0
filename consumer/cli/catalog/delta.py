"""``catalog delta`` and ``catalog rebase``: versions that say only what they change."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field
from pydantic_settings import CliPositionalArg

from catalog_sync.settings import CatalogSettings
from consumer.cli.catalog.models import only_model
from consumer.cli.catalog.on_redis import OnRedis
from consumer.cli.catalog.shown import say, say_current
from engine.errors import CatalogError

if TYPE_CHECKING:
    from catalog_sync.layout import Manifest
    from engine.catalog.catalog import Ids

REBASE_AFTER = 32


class DeltaCommand(OnRedis):
    """Change the current version of a model: add, replace and withdraw items.

    The new version carries these items only. A chain that has grown long enough is then written out in full, by another
    process, for instances that start with nothing.
    """

    add: Path | None = Field(None, description="item table, as for `catalog build`; an id that is there is replaced")
    withdraw: tuple[str, ...] = Field(
        (), description="ids to take out of recall, or files with a column item_id; may be repeated"
    )
    model: str | None = Field(None, description="model id; may be left out if only one model has a current version")
    label: str | None = Field(None, max_length=200, description="a name for people; the version is the content's hash")
    key: Path | None = Field(None, description="PEM file of an Ed25519 private key to sign the manifests with")
    rebase_after: int = Field(
        REBASE_AFTER, ge=0, le=200, description="deltas after which the version is written out in full; 0: never"
    )

    def run(self, settings: CatalogSettings) -> None:
        from catalog_sync.changes import load_upserts
        from catalog_sync.deltas import DeltaPublisher
        from catalog_sync.rebase_helper import RebaseHelper, signer

        if self.add is None and not self.withdraw:
            raise CatalogError("empty", "give --add or --withdraw")
        with self.publisher(settings) as publisher:
            deltas = DeltaPublisher(publisher, signer(self.key))
            head = deltas.head(self.model or only_model(publisher))
            upserts = load_upserts(self.add, head.manifest) if self.add is not None else None
            manifest, pointer = deltas.publish(head, upserts, self._withdrawn(head.manifest), self.label)
            say(f"{manifest.items:,} items added or replaced, {manifest.withdrawn:,} withdrawn")
            say_current(manifest.model, pointer)
            if self.rebase_after and deltas.chain_length(manifest) >= self.rebase_after:
                with RebaseHelper(self.merged(settings), self.key, say) as helper:
                    helper.start(manifest.version)

    def _withdrawn(self, parent: "Manifest") -> Sequence["Ids"]:
        from catalog_sync.changes import load_ids, parse_ids

        files = [Path(word) for word in self.withdraw if _is_file(word)]
        words = [word for word in self.withdraw if not _is_file(word)]
        return [*map(load_ids, files), *([parse_ids(words, parent)] if words else [])]


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except OSError:  # an id can be longer than a file's name
        return False


class Rebase(OnRedis):
    """Write a delta version out in full, for instances that start with nothing; it stays the same version."""

    version: CliPositionalArg[str | None] = Field(None, description="version name; the current one if left out")
    model: str | None = Field(None, description="model id, where several models have a current version")
    key: Path | None = Field(None, description="PEM file of an Ed25519 private key to sign the manifest with")

    def run(self, settings: CatalogSettings) -> None:
        from catalog_sync.deltas import DeltaPublisher
        from catalog_sync.rebase_helper import signer

        with self.publisher(settings) as publisher:
            deltas = DeltaPublisher(publisher, signer(self.key))
            version = self.version or deltas.head(self.model or only_model(publisher)).pointer.version
            full = deltas.rebase(version)
        say(f"version {version} is there in full: {full.items:,} items, {full.size:,} bytes")
