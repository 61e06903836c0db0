"""``catalog guard``: takes a version away from the whole fleet when enough instances found it bad."""

from pydantic import Field

from catalog_sync.settings import CatalogSettings
from consumer.cli.catalog.on_redis import OnRedis
from consumer.cli.catalog.shown import say


class Guard(OnRedis):
    """Quarantine what enough instances found bad and move the pointer back; runs until it is stopped.

    Several may run at once, and one may be killed at any point: the next pass goes on.
    """

    once: bool = Field(False, description="look once and end")
    seconds: float = Field(5.0, gt=0, le=3600, description="pause between two looks")
    count: int = Field(2, ge=1, description="so many instances must have found a version bad ...")
    share: float = Field(0.5, ge=0, le=1, description="... and such a share of the model's living ones")

    def run(self, settings: CatalogSettings) -> None:
        import signal
        from threading import Event

        from catalog_sync.fleet_guard import FleetGuard, Quorum

        with self.quarantine(settings) as quarantine:
            guard = FleetGuard(quarantine, Quorum(self.count, self.share))
            if self.once:
                for line in guard.once():
                    say(line)
                return
            stop = Event()
            before = {each: signal.signal(each, lambda *_: stop.set()) for each in (signal.SIGTERM, signal.SIGINT)}
            try:
                guard.run(self.seconds, stop, say)
            finally:
                for each, handler in before.items():
                    signal.signal(each, handler)
