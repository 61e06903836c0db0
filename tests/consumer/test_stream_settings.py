"""Kafka's settings: what is fixed stays fixed, what contradicts is refused, secrets are not shown."""

import pytest
from confluent_kafka import Consumer
from pydantic import ValidationError

from consumer.stream.settings import KafkaSettings


@pytest.mark.parametrize("name", ["client_options", "consumer_options", "producer_options"])
@pytest.mark.parametrize(
    "option",
    ["enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "acks", "delivery.report.only.error"],
)
def test_options_that_the_guarantees_rest_on_cannot_be_changed(name: str, option: str) -> None:
    with pytest.raises(ValidationError, match=option):
        KafkaSettings.model_validate({name: {option: "true"}})


@pytest.mark.parametrize("name", ["client_options", "consumer_options", "producer_options"])
@pytest.mark.parametrize(
    ("option", "setting"),
    [
        ("group.id", "kafka.group_id"),
        ("group.protocol", "kafka.group_protocol"),
        ("group.instance.id", "kafka.instance_id"),
        ("bootstrap.servers", "kafka.bootstrap_servers"),
        ("metadata.broker.list", "kafka.bootstrap_servers"),
        ("message.max.bytes", "kafka.max_message_bytes"),
        ("delivery.timeout.ms", "kafka.message_timeout_ms"),
    ],
)
def test_an_option_that_has_a_setting_is_refused_by_the_settings_name(name: str, option: str, setting: str) -> None:
    with pytest.raises(ValidationError, match=rf"{name}: {option} is the setting {setting}"):
        KafkaSettings.model_validate({name: {option: "1"}})


def test_nothing_is_committed_or_reset_behind_our_back() -> None:
    options = KafkaSettings().consumer("classic")
    assert options["enable.auto.commit"] is False
    assert options["enable.auto.offset.store"] is False
    assert options["auto.offset.reset"] == "error"
    assert options["partition.assignment.strategy"] == "cooperative-sticky"


def test_what_the_brokers_decide_is_not_given_with_the_consumer_protocol() -> None:
    """The client refuses to be made with these."""
    options = KafkaSettings().consumer("consumer")
    refused = {"session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy", "group.instance.id"}
    assert not refused & options.keys()
    assert options["group.protocol"] == "consumer"
    assert Consumer(options) is not None


@pytest.mark.parametrize("protocol", ["auto", "consumer"])
def test_static_membership_is_for_the_classic_protocol_and_says_why(protocol: str) -> None:
    with pytest.raises(ValidationError, match="could not come back under its name"):
        KafkaSettings.model_validate({"instance_id": "a", "group_protocol": protocol})
    settings = KafkaSettings(instance_id="a", group_protocol="classic")
    assert settings.consumer("classic")["group.instance.id"] == "a"


def test_replies_are_idempotent_and_acknowledged_by_all_and_create_no_topic() -> None:
    options = KafkaSettings().producer()
    assert options["enable.idempotence"] is True
    assert options["acks"] == "all"
    assert options["allow.auto.create.topics"] is False


def test_other_options_pass_through() -> None:
    settings = KafkaSettings(client_options={"client.id": "x"}, consumer_options={"fetch.wait.max.ms": 5})
    assert settings.consumer("classic")["fetch.wait.max.ms"] == 5
    assert settings.producer()["client.id"] == "x"
    assert "fetch.wait.max.ms" not in settings.producer()


def test_a_process_may_read_several_topics_but_none_that_it_writes() -> None:
    settings = KafkaSettings.model_validate({"topics": {"b": {"reply_topic": "c"}, "recall.requests": {"width": 3}}})
    assert settings.request_topics == ("recall.requests", "b")
    for topics, reason in (
        ({"recall.replies": {}}, "recall.replies is written to"),
        ({"recall.dead-letters": {}}, "recall.dead-letters is written to"),
        ({"b": {"reply_topic": "recall.requests"}}, "recall.requests is written to"),
        ({"^b.*": {}}, "is no topic name"),
    ):
        with pytest.raises(ValidationError, match=reason):
            KafkaSettings.model_validate({"topics": topics})


@pytest.mark.parametrize("setting", ["request_topic", "reply_topic", "dead_letter_topic"])
def test_a_topic_that_kafka_could_not_have_is_refused_at_the_start(setting: str) -> None:
    with pytest.raises(ValidationError, match="'no topic' is no topic name"):
        KafkaSettings.model_validate({setting: "no topic"})


def test_only_the_consumer_of_requests_asks_to_hear_where_partitions_end() -> None:
    """Others take the same options and would take what they hear for an error."""
    assert "enable.partition.eof" not in KafkaSettings().consumer("classic")


def test_replies_and_dead_letters_do_not_share_a_topic() -> None:
    with pytest.raises(ValidationError, match=r"recall\.replies is the topic of dead letters"):
        KafkaSettings(dead_letter_topic="recall.replies")
    with pytest.raises(ValidationError, match=r"recall\.dead-letters is the topic of dead letters"):
        KafkaSettings.model_validate({"topics": {"b": {"reply_topic": "recall.dead-letters"}}})


def test_the_password_reaches_the_client_and_no_representation() -> None:
    settings = KafkaSettings.model_validate({"sasl_password": "hunter2"})
    assert settings.connection()["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in settings.model_dump_json()


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValidationError, match="max_poll_interval_ms"):
        KafkaSettings(max_poll_interval_ms=10_000, session_timeout_ms=20_000)
    with pytest.raises(ValidationError, match="message_timeout_ms"):
        KafkaSettings(message_timeout_ms=10_000, brokers_down_limit_s=60)
