"""The serving loop on an embedded broker, all in this process."""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from consumer.serving.service import ServingLoop
from consumer.serving.settings import BatchSettings
from consumer.stream.mock_cluster import MockCluster
from consumer.stream.settings import KafkaSettings
from consumer.wire.settings import RecallDefaults, WireLimits
from engine.errors import RecallstreamError
from engine.recall_engine import RecallEngine

_READY_S = 30.0
_NO_WAIT: Mapping[str, int] = {"fetch.wait.max.ms": 1}
"""Brokers answer a waiting fetch when a record comes; this one does when its time is over."""


@contextmanager
def embedded_service(
    engine: RecallEngine, *, partitions: int, deadline_s: float, **more: Any
) -> Iterator[tuple[KafkaSettings, ServingLoop]]:
    """Broker and serving loop; see ``embedded_broker`` and ``serving``."""
    with embedded_broker(partitions) as kafka, serving(engine, kafka, deadline_s=deadline_s, **more) as loop:
        yield kafka, loop


@contextmanager
def embedded_broker(partitions: int, **changes: Any) -> Iterator[KafkaSettings]:
    """A broker with the topics; ``partitions``: of requests; ``changes``: of the settings for it."""
    kafka = KafkaSettings(consumer_options=dict(_NO_WAIT), **changes)
    with MockCluster({kafka.request_topic: partitions, kafka.reply_topic: 1, kafka.dead_letter_topic: 1}) as broker:
        yield kafka.model_copy(update={"bootstrap_servers": broker.bootstrap_servers})


@contextmanager
def serving(engine: RecallEngine, kafka: KafkaSettings, *, deadline_s: float, **more: Any) -> Iterator[ServingLoop]:
    """A serving loop that is a member of its group. ``deadline_s``: of requests that name none.

    ``more``: of ``ServingLoop``. Raises RecallstreamError if it is not up in time, or when it has failed.
    """
    logging.getLogger("consumer").addHandler(logging.NullHandler())  # a failure is raised here
    limit_ms = int(deadline_s * 1e3)
    loop = ServingLoop(
        engine,
        kafka=kafka,
        batch=BatchSettings(max_requests=min(BatchSettings().max_requests, engine.settings.max_batch)),
        limits=WireLimits(),
        defaults=RecallDefaults(deadline_ms=limit_ms, max_deadline_ms=2 * limit_ms),
        **more,
    )
    loop.start()
    try:
        _wait_until_joined(loop)
        yield loop
    finally:
        loop.stop()
    if loop.failure is not None:
        raise RecallstreamError(loop.failure)


def _wait_until_joined(loop: ServingLoop) -> None:
    deadline = time.monotonic() + _READY_S
    while not loop.snapshot().partitions:
        if time.monotonic() > deadline:
            raise RecallstreamError(f"the service joined no group within {_READY_S:g} s: {loop.snapshot().not_ready}")
        time.sleep(0.01)
