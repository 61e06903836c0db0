"""``catalog keygen``: a key pair for signed manifests."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from catalog_sync.settings import CatalogSettings
from consumer.cli.catalog.shown import say


class Keygen(BaseModel):
    """Write a new Ed25519 key pair. The private key signs (`publish --key`), consumers trust the public one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    private: Path = Field(description="PEM file to write the private key to; must not exist")
    public: Path = Field(description="PEM file to write the public key to, for catalog.trusted_keys; must not exist")

    def run(self, settings: CatalogSettings) -> None:
        from catalog_sync.signing import write_key_pair

        write_key_pair(self.private, self.public)
        say(f"{self.private} signs, {self.public} is for catalog.trusted_keys")
