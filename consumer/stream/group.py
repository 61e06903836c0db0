"""Which protocol this member speaks with its group, and the group's configuration, which brokers keep for KIP-848."""

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its type hints re-export little
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from consumer.stream.errors import reason_of
from consumer.stream.settings import GroupProtocol, KafkaSettings

HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
SESSION: Final = "consumer.session.timeout.ms"

_ANSWER_S: Final = 4.0
_DENIED: Final = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
_AWAY: Final = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_CONTROLLER,
    }
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupView:
    """``protocol`` is none until it is chosen. ``refused``: why the group's configuration is not what we ask for."""

    protocol: GroupProtocol | None = None
    refused: str | None = None


UNDECIDED: Final = GroupView()


class GroupSetup:
    """Sets the group's configuration where it may, and chooses the protocol if the settings leave it open.

    Before the member joins: the brokers give one that has joined the new times with its next heartbeat only. One
    thread calls it, nothing in it waits. With ``classic`` it asks nothing: those members bring their own times.
    """

    def __init__(self, settings: KafkaSettings, client: AdminClient) -> None:
        self._client = client
        self._group = settings.group_id
        self._open = settings.group_protocol == "auto"
        self._wanted = {
            HEARTBEAT: settings.heartbeat_interval_ms,
            SESSION: settings.consumer_session_timeout_ms,
        }
        self._found: dict[str, int] = {}
        self._described: Future[Any] | None = None
        self._altered: dict[str, Future[Any]] = {}
        self._done = settings.group_protocol == "classic"
        self.view = GroupView("classic") if self._done else UNDECIDED

    def refresh(self, *, away: bool) -> None:
        """Take in what was answered, ask what comes next; ``away``: no broker can be reached, which is waited for."""
        if self._done:
            return
        if self._described is None:
            self._described = self._describe()
        elif self._altered:
            if all(answer.done() for answer in self._altered.values()):
                self._take_in_changes()
        elif self._described.done():
            self._take_in_description(self._described, away)

    def fall_back(self, reason: str) -> bool:
        """Whether a member that the consumer protocol refused may try the classic one; from then on it does."""
        if not self._open or self.view.protocol != "consumer":
            return False
        self._choose("classic", reason)
        return True

    def _describe(self) -> Future[Any]:
        resource = ConfigResource(ConfigResource.Type.GROUP, self._group)
        (answer,) = self._client.describe_configs([resource], request_timeout=_ANSWER_S).values()
        return answer

    def _take_in_description(self, answer: Future[Any], away: bool) -> None:
        try:
            self._found = {name: int(answer.result()[name].value) for name in self._wanted}
        except KafkaException as error:
            code = error.args[0].code()
            if away and code in _AWAY:
                self._described = None
                return
            if code not in _DENIED:
                self._conclude(f"the brokers keep no configuration of groups: {reason_of(error)}")
                return
        except KeyError:
            self._conclude("the brokers keep no configuration of groups for the consumer protocol")
            return
        self._altered = {
            name: self._alter(name, value) for name, value in self._wanted.items() if self._found.get(name) != value
        }
        if not self._altered:
            self._conclude(None)

    def _alter(self, name: str, value: int) -> Future[Any]:
        # One request each: the brokers refuse a request as a whole.
        entry = ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.GROUP, self._group, incremental_configs=[entry])
        (answer,) = self._client.incremental_alter_configs([resource], request_timeout=_ANSWER_S).values()
        return answer

    def _take_in_changes(self) -> None:
        refused: dict[str, str] = {}
        for name, answer in self._altered.items():
            error = answer.exception()
            if error is None:
                self._found[name] = self._wanted[name]
            else:
                refused[name] = reason_of(error)
        reasons = dict.fromkeys(refused.values())
        self._conclude(f"{', '.join(refused)}: {' '.join(reasons)}" if refused else None)

    def _conclude(self, refused: str | None) -> None:
        self._done = True
        self.view = GroupView(None, refused)
        self._choose(*(self._best(self._found, refused) if self._open else ("consumer", "as set")))
        if refused is not None and self.view.protocol == "consumer":
            log.warning("the group's configuration stays as it is: %s", refused)

    def _best(self, found: Mapping[str, int], refused: str | None) -> tuple[GroupProtocol, str]:
        heartbeat, limit = found.get(HEARTBEAT), self._wanted[HEARTBEAT]
        if heartbeat is None:
            return "classic", refused or "the group's heartbeat interval is not known"
        if heartbeat > limit:
            return "classic", f"the group's heartbeat interval is {heartbeat} ms, not {limit} ms: {refused}"
        return "consumer", f"the brokers keep a heartbeat of {heartbeat} ms for this group"

    def _choose(self, protocol: GroupProtocol, reason: str) -> None:
        self.view = GroupView(protocol, self.view.refused)
        log.info("the group protocol is %s: %s", protocol, reason)
