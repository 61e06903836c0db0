"""A user who comes back, through the whole service."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.settings import CatalogSettings
from consumer.client import RecallClient, RecallReply
from consumer.stream.mock_cluster import MockCluster
from consumer.stream.settings import KafkaSettings
from tests.consumer.serve_harness import ITEMS, MODEL, START_S, flags, publish, service
from tests.consumer.waiting import eventually
from tests.engine.tiny_models import write_model


@pytest.fixture
def kafka() -> Iterator[KafkaSettings]:
    with MockCluster({"recall.requests": 2, "recall.replies": 1, "recall.dead-letters": 1}) as cluster:
        yield KafkaSettings(bootstrap_servers=cluster.bootstrap_servers, group_protocol="classic")


def test_a_returning_users_context_is_reused_until_the_user_is_forgotten(tmp_path: Path, kafka: KafkaSettings) -> None:
    async def visits() -> list[RecallReply]:
        async with RecallClient(kafka) as client:
            replies = [
                await client.recall(user_id=user, history=list(range(100, 100 + events)), timeout=20)
                for user, events in (("u", 5), ("u", 8), ("v", 8))
            ]
            await client.forget("u")
            replies.append(await client.recall(user_id="u", history=list(range(100, 108)), timeout=20))
            return replies

    with EmbeddedRedis() as server:
        redis = CatalogSettings.model_validate({"url": server.url})
        publish(redis, ITEMS, "sessions")
        model = write_model(MODEL, tmp_path / "model")
        with service(tmp_path, *flags(model, kafka, redis, "sessions")) as running:
            eventually(lambda: running.reasons() == [], START_S)
            replies = asyncio.run(visits())
            pool = running.status()["engine"]
    assert [reply.reused_tokens for reply in replies] == [0, 1 + 5 * 3, 0, 0]
    assert len({tuple(reply.items) for reply in replies[1:]}) == 1
    assert pool["session_hits"] == 1
    assert pool["sessions"] in (1, 2)  # what is read together with the forget leaves no session either
