"""The choice of the group protocol, against an administrator whose answers the test gives."""

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from consumer.stream.group import HEARTBEAT, SESSION, GroupSetup, GroupView
from consumer.stream.settings import KafkaSettings
from tests.consumer.serving_harness import Harness, harness
from tests.consumer.waiting import eventually

WANTED = {HEARTBEAT: 1_000, SESSION: 15_000}
STOCK = {HEARTBEAT: 5_000, SESSION: 45_000}


class Admin:
    """Notes what it is asked; ``describe`` and ``alter`` are answered by the test."""

    def __init__(self) -> None:
        self.described: list[Future[Any]] = []
        self.altered: dict[str, Future[None]] = {}

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        self.described.append(Future())
        return {resources[0]: self.described[-1]}

    def incremental_alter_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Future[None]]:
        (entry,) = resources[0].incremental_configs
        self.altered[entry.name] = Future()
        assert entry.value == str(WANTED[entry.name])
        return {resources[0]: self.altered[entry.name]}

    def tell(self, times: Mapping[str, int]) -> None:
        self.described[-1].set_result({name: SimpleNamespace(value=str(value)) for name, value in times.items()})


class Made:
    def __init__(self, protocol: str = "auto") -> None:
        self.admin = Admin()
        settings = KafkaSettings.model_validate({"group_protocol": protocol})
        self.setup = GroupSetup(settings, self.admin)  # type: ignore[arg-type]  # as much of it as is used
        self.turn()

    def turn(self, *, away: bool = False) -> GroupView:
        self.setup.refresh(away=away)
        return self.setup.view


def refusal(code: int) -> KafkaException:
    return KafkaException(KafkaError(code, "refused"))


def test_a_group_that_has_its_times_already_is_left_as_it_is() -> None:
    made = Made()
    made.admin.tell(WANTED)
    assert made.turn() == GroupView("consumer")
    assert not made.admin.altered


def test_times_that_differ_are_set_before_the_group_is_joined() -> None:
    made = Made()
    made.admin.tell(STOCK)
    assert made.turn().protocol is None
    for answer in made.admin.altered.values():
        assert made.turn().protocol is None
        answer.set_result(None)
    assert made.turn() == GroupView("consumer")


@pytest.mark.parametrize(("refused", "protocol"), [(HEARTBEAT, "classic"), (SESSION, "consumer")])
def test_only_a_heartbeat_that_is_refused_decides(refused: str, protocol: str) -> None:
    made = Made()
    made.admin.tell(STOCK)
    made.turn()
    for name, answer in made.admin.altered.items():
        if name == refused:
            answer.set_exception(refusal(KafkaError.INVALID_CONFIG))
        else:
            answer.set_result(None)
    assert made.turn() == GroupView(protocol, f"{refused}: refused")  # type: ignore[arg-type]  # one of the two


def test_who_may_not_see_the_times_tries_to_set_them() -> None:
    made = Made()
    made.admin.described[0].set_exception(refusal(KafkaError.GROUP_AUTHORIZATION_FAILED))
    made.turn()
    assert set(made.admin.altered) == set(WANTED)
    for answer in made.admin.altered.values():
        answer.set_result(None)
    assert made.turn() == GroupView("consumer")


def test_brokers_that_are_away_are_asked_again_and_ones_that_never_answer_are_not() -> None:
    made = Made()
    for number in (1, 2):
        made.admin.described[-1].set_exception(refusal(KafkaError._TIMED_OUT))
        assert made.turn(away=True) == GroupView()
        made.turn(away=True)
        assert len(made.admin.described) == number + 1
    made.admin.described[-1].set_exception(refusal(KafkaError._TIMED_OUT))
    view = made.turn(away=False)
    assert view.protocol == "classic"
    assert "keep no configuration of groups" in (view.refused or "")


@pytest.mark.parametrize("answer", ["other times", "no such resource"])
def test_brokers_that_know_nothing_of_it_get_a_classic_member(answer: str) -> None:
    made = Made()
    if answer == "other times":
        made.admin.tell({"share.heartbeat.interval.ms": 5_000})
    else:
        made.admin.described[0].set_exception(refusal(KafkaError.INVALID_REQUEST))
    assert made.turn().protocol == "classic"


def test_the_consumer_protocol_is_kept_whatever_the_brokers_say() -> None:
    made = Made("consumer")
    made.admin.described[0].set_exception(refusal(KafkaError.GROUP_AUTHORIZATION_FAILED))
    made.turn()
    for answer in made.admin.altered.values():
        answer.set_exception(refusal(KafkaError.GROUP_AUTHORIZATION_FAILED))
    view = made.turn()
    assert view.protocol == "consumer"
    assert view.refused == f"{HEARTBEAT}, {SESSION}: refused"
    assert not made.setup.fall_back("no such API")


def test_a_classic_member_asks_nothing() -> None:
    made = Made("classic")
    assert made.turn() == GroupView("classic")
    assert not made.admin.described


def test_only_a_choice_of_its_own_is_taken_back() -> None:
    made = Made()
    made.admin.tell(WANTED)
    made.turn()
    assert made.setup.fall_back("no such API")
    assert made.setup.view.protocol == "classic"
    assert not made.setup.fall_back("again")


@pytest.fixture
def mocked() -> Any:
    with harness() as each:
        yield each


def test_the_mock_keeps_no_configuration_and_is_joined_as_classic(mocked: Harness) -> None:
    member = mocked.member(kafka=mocked.kafka(group_protocol="auto"))
    mocked.send("r1")
    mocked.flush()
    mocked.replies.wait(1)
    assert member.snapshot().group.protocol == "classic"


def test_a_member_that_does_not_know_its_protocol_yet_says_that_no_broker_is_there(mocked: Harness) -> None:
    lost = mocked.kafka(group_protocol="auto", bootstrap_servers="127.0.0.1:1", brokers_down_limit_s=2.0)
    member = mocked.member(kafka=lost, wait=False)
    reason = "not a member of the consumer group yet: no broker can be reached at 127.0.0.1:1"
    eventually(lambda: member.snapshot().not_ready == (reason,))
    assert "no broker can be reached" in eventually(lambda: member.loop.failure, 20.0)
    assert member.stop() == 1
