"""What an instance writes of itself."""

from catalog_sync.layout import Ack
from catalog_sync.settings import CatalogSettings
from catalog_sync.state import WatcherSnapshot


def ack_of(settings: CatalogSettings, model: str, snapshot: WatcherSnapshot, time_ms: int) -> Ack:
    """The ack of an instance in the state of ``snapshot``."""
    return Ack(
        instance=settings.instance,
        model=model,
        version=snapshot.active,
        generation=snapshot.generation,
        state=snapshot.state,
        error=f"{snapshot.reason}: {snapshot.error}" if snapshot.reason else None,
        time_ms=time_ms,
        group=settings.group,
        target=snapshot.target,
        pinned=snapshot.pinned,
        resident=tuple(snapshot.sizes),
        condemned=dict(snapshot.condemned),
        kept=dict(snapshot.kept),
        staleness_s=snapshot.staleness_seconds,
        resident_bytes=snapshot.resident_bytes,
    )
