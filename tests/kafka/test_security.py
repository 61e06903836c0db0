"""SCRAM, TLS and access rules of a real broker."""

import asyncio
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]  # re-exported without saying so

from consumer.client import RecallClient
from deploy.kafka.cluster import KafkaCluster
from tests.consumer.waiting import eventually
from tests.kafka.access import PASSWORD, USER, deny, login
from tests.kafka.real_harness import RealHarness

pytestmark = pytest.mark.kafka

WRONG = "looking-glass"


@pytest.fixture(scope="module")
def secured(broker: KafkaCluster) -> KafkaCluster:
    broker.add_user(USER, PASSWORD)
    return broker


def plain(made: RealHarness) -> dict[str, Any]:
    return {
        "security_protocol": "sasl_plaintext",
        "bootstrap_servers": f"127.0.0.1:{made.cluster.nodes[0].sasl_port}",
        "ssl_ca_location": None,
    }


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])
def test_scram_round_trip(secured: KafkaCluster, made: RealHarness, tls: bool) -> None:
    settings = login(made) if tls else login(made, **plain(made))
    made.member(kafka=settings)

    async def ask() -> str:
        async with RecallClient(settings) as client:
            return (await client.recall(user_id="u", history=[7], timeout=20)).status

    assert asyncio.run(ask()) == "ok"
    eventually(lambda: made.committed() == 1)


def test_a_wrong_password_ends_the_process(secured: KafkaCluster, made: RealHarness) -> None:
    member = made.member(kafka=login(made, sasl_password=WRONG, authentication_limit_s=2.0), wait=False)
    assert "refuse our credentials" in eventually(lambda: member.loop.failure, 30.0)
    assert member.snapshot().not_ready
    assert member.stop() == 1


def test_a_certificate_that_is_not_trusted_ends_the_process(secured: KafkaCluster, made: RealHarness) -> None:
    untrusting = login(made, ssl_ca_location=None, authentication_limit_s=2.0)
    member = made.member(kafka=untrusting, wait=False)
    assert eventually(lambda: member.loop.failure, 30.0)
    assert member.stop() == 1


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_reply_topic_that_we_may_not_write_is_a_dead_letter(
    secured: KafkaCluster, made: RealHarness, delivery: str
) -> None:
    forbidden = made.requests + ".forbidden"
    secured.create_topics({forbidden: 1})
    deny(secured, ResourceType.TOPIC, forbidden, AclOperation.WRITE)
    for number in range(20):
        made.send(f"r{number}", headers={"reply-topic": forbidden.encode()} if number == 11 else None)
    made.flush()
    member = made.member(kafka=login(made, reply_topics_allowed=(forbidden,), delivery=delivery))
    assert made.dead_letters.wait(1)[0].headers["dlq.error.class"] == b"reply_topic_denied"
    replied = {received.reply.request_id for received in made.replies.wait(19)}
    assert replied == {f"r{number}" for number in range(20)} - {"r11"}
    eventually(lambda: made.committed() == 20)
    assert member.loop.failure is None


def test_a_group_that_we_may_not_join_ends_the_process(secured: KafkaCluster, made: RealHarness) -> None:
    deny(secured, ResourceType.GROUP, made.group, AclOperation.READ)
    member = made.member(kafka=login(made), wait=False)
    assert "GROUP_AUTHORIZATION_FAILED" in eventually(lambda: member.loop.failure, 30.0)
    assert member.stop() == 1
