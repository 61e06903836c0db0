"""The subscription to notices, made anew whenever it fails or falls silent."""

import logging
import time
from contextlib import suppress
from threading import Event
from typing import Literal

import redis
from redis.client import PubSub

from catalog_sync.backoff import Backoff
from catalog_sync.connection import subscribe

_UNANSWERED_PINGS = 2

log = logging.getLogger(__name__)


class Listener:
    """Of one channel, for one thread. ``lost``: subscriptions that failed. ``stop`` ends a wait without one."""

    def __init__(self, client: redis.Redis, channel: str, backoff: Backoff, stop: Event) -> None:
        self.lost = 0
        self._redis, self._channel, self._backoff, self._stop = client, channel, backoff, stop
        self._subscription: PubSub | None = None
        self._subscribe_at = 0.0

    def wait(self, seconds: float) -> Literal["subscribed", "notice"] | None:
        """What came within ``seconds``; without a subscription (it is retried with pauses) only wait."""
        if self._subscription is None and time.monotonic() < self._subscribe_at:
            self._stop.wait(seconds)
            return None
        try:
            if self._subscription is None:
                self._subscription = subscribe(self._redis, self._channel)
            message = self._subscription.get_message(timeout=seconds)
            if self._subscription.health_check_response_counter > _UNANSWERED_PINGS:
                raise redis.ConnectionError("the subscription does not answer")
        except Exception as error:  # whatever it is, a new subscription has the best chance
            log.info("the subscription is lost: %s", error)
            self.close()
            self._subscribe_at = time.monotonic() + self._backoff.pause()
            self.lost += 1
            return None
        if message is None:
            return None
        if message["type"] != "subscribe":
            return "notice"
        self._backoff.reset()
        return "subscribed"

    def close(self) -> None:
        if self._subscription is not None:
            with suppress(redis.RedisError, OSError):
                self._subscription.close()
            self._subscription = None
        self._redis.connection_pool.disconnect()
