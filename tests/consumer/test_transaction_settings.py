"""Settings of exactly-once delivery and what they become for the Kafka client."""

import pytest
from confluent_kafka import Producer
from pydantic import ValidationError

from consumer.stream.settings import KafkaSettings


def test_without_a_name_every_start_has_one_of_its_own() -> None:
    kafka = KafkaSettings(delivery="exactly-once", group_id="g")
    first, second = (kafka.transactional_producer()["transactional.id"] for _ in range(2))
    assert first != second
    assert first.startswith("g-")


def test_a_given_name_is_kept() -> None:
    assert KafkaSettings(transactional_id="pod-3").transactional_producer()["transactional.id"] == "pod-3"


@pytest.mark.parametrize("timeout_ms", [1_000, 10_000, 300_000])
def test_the_client_takes_the_time_outs_that_follow_from_the_transactions(timeout_ms: int) -> None:
    options = KafkaSettings(transaction_timeout_ms=timeout_ms).transactional_producer()
    assert options["message.timeout.ms"] <= timeout_ms
    Producer(options)  # refuses time-outs that contradict each other


def test_the_retry_back_off_can_be_changed_and_what_the_guarantee_rests_on_cannot() -> None:
    options = KafkaSettings(producer_options={"retry.backoff.ms": 50}).transactional_producer()
    assert options["retry.backoff.ms"] == 50
    with pytest.raises(ValidationError, match=r"transactional\.id is the setting kafka\.transactional_id"):
        KafkaSettings(producer_options={"transactional.id": "x"})
    for where in ("client_options", "consumer_options"):
        with pytest.raises(ValidationError, match=r"exactly-once needs isolation\.level read_committed"):
            KafkaSettings.model_validate({"delivery": "exactly-once", where: {"isolation.level": "read_uncommitted"}})


def test_other_producers_of_the_same_settings_are_no_transactional_ones() -> None:
    """A client or a replay with the service's settings would fence it otherwise."""
    assert "transactional.id" not in KafkaSettings(delivery="exactly-once", transactional_id="pod-3").producer()
