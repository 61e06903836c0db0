"""What the sub-commands share that talk to Redis."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from catalog_sync.settings import CatalogSettings
from engine.errors import CatalogError

if TYPE_CHECKING:
    from catalog_sync.fleet_quarantine import FleetQuarantine
    from catalog_sync.publisher import Publisher


class OnRedis(BaseModel):
    """A sub-command that talks to Redis."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: SecretStr | None = Field(None, description="Redis; in the place of the setting catalog.url")
    namespace: str | None = Field(None, description="in the place of the setting catalog.namespace")

    def merged(self, settings: CatalogSettings) -> CatalogSettings:
        """The settings with what the flags say."""
        given = {name: value for name in ("url", "namespace") if (value := getattr(self, name)) is not None}
        return CatalogSettings.model_validate(dict(settings) | given)

    @contextmanager
    def publisher(self, settings: CatalogSettings) -> Iterator["Publisher"]:
        """Raises CatalogError ``redis`` for whatever Redis or the way to it has."""
        import redis

        from catalog_sync.connection import connect
        from catalog_sync.publisher import Publisher

        merged = self.merged(settings)
        try:
            with connect(merged) as client:
                yield Publisher(client, merged.namespace)
        except redis.RedisError as error:
            raise CatalogError("redis", f"Redis: {error}") from error

    @contextmanager
    def quarantine(self, settings: CatalogSettings) -> Iterator["FleetQuarantine"]:
        """The same."""
        from catalog_sync.fleet_quarantine import FleetQuarantine

        with self.publisher(settings) as publisher:
            yield FleetQuarantine(publisher.client, publisher.keys, publisher)
