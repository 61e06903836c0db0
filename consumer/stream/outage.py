"""How long something has been wrong."""


class Outage:
    """Runs from the first sign of trouble to the next sign of life; ``limit`` in seconds."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: float | None = None

    def note(self, now: float) -> None:
        """A sign of trouble."""
        if self._since is None:
            self._since = now

    def clear(self) -> None:
        """A sign of life."""
        self._since = None

    @property
    def running(self) -> bool:
        return self._since is not None

    def over_limit(self, now: float) -> bool:
        return self._since is not None and now - self._since >= self._limit
