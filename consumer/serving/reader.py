"""From a record to a request that the engine takes, or to what is wrong with it. Nothing here can fail a neighbour."""

import logging

from consumer.histories.history import Change
from consumer.histories.items import Cap, memory_of
from consumer.histories.operation import Brought, Operation, UserKey
from consumer.serving.coalesce import run_key
from consumer.serving.deadlines import Moment
from consumer.serving.in_flight import Denied, Done, InFlight, Job, Outcome, Repeat, size_of
from consumer.serving.load_settings import LoadSettings
from consumer.serving.offsets import Ownership
from consumer.serving.recaller import Recaller
from consumer.serving.repeats import RepeatCache, identity_of
from consumer.serving.topics import TopicRules, closed_topics, reply_topics, rules_of
from consumer.stream.settings import KafkaSettings
from consumer.wire.dead_letter import SourceRecord
from consumer.wire.errors import WireError
from consumer.wire.events import WireEvent
from consumer.wire.fields import WireRequest
from consumer.wire.headers import UNREADABLE, RequestHeaders, reply_topic_allowed
from consumer.wire.request import RequestDecoder
from consumer.wire.settings import RecallDefaults, WireLimits
from engine.errors import RequestError
from engine.request import NO_ITEMS, ItemIds

_NO_DEADLINE = float("inf")

log = logging.getLogger(__name__)


class RequestReader:
    """Decodes, validates and sizes records of the topics that ``kafka`` names. Raises ValueError for contradictions."""

    def __init__(
        self,
        engine: Recaller,
        kafka: KafkaSettings,
        limits: WireLimits,
        defaults: RecallDefaults,
        repeats: RepeatCache,
        load: LoadSettings | None = None,
    ) -> None:
        self._engine = engine
        self._reply_topics, self._closed = reply_topics(kafka), closed_topics(kafka)
        self._rules = rules_of(kafka, defaults, len(engine.spec.levels))
        self._decoder = RequestDecoder(limits)
        self._repeats = repeats
        self._load = load or LoadSettings()
        self._cap = Cap(engine.spec.max_history_items, engine.spec.history_drop)

    def read(self, record: SourceRecord, ownership: Ownership, now: Moment) -> InFlight | Job:
        """A request to be queued, or what needs no engine. One with an ``operation`` goes by its user's history."""
        if record.fault is not None:
            unread = WireError("bad_request", record.fault)
            return Outcome(self._item(record, ownership, now, RequestHeaders(), unread), unread, "read")
        headers = RequestHeaders.parse(record.headers) if record.headers_readable else UNREADABLE
        try:
            wire = self._decoder.decode(record.value, record.key)
        except WireError as error:
            item = self._item(record, ownership, now, headers, error)
            return self._denied(item) or Outcome(item, error.as_answer(), "decode")
        if type(wire) is WireEvent:
            return self._event(record, ownership, now, headers, wire)
        return self._request(record, ownership, now, headers, wire)

    def _request(
        self, record: SourceRecord, ownership: Ownership, now: Moment, headers: RequestHeaders, wire: WireRequest
    ) -> InFlight | Job:
        rules = self._rules[record.topic]
        deadline = now.deadline(wire.deadline_ms, record.timestamp_ms, rules.deadline_ms, rules.max_deadline_ms)
        history, append = wire.history, wire.append
        brought = history if append is None else append
        ids = 0 if wire.exclude is NO_ITEMS else memory_of(wire.exclude)
        if brought is not None:
            ids += memory_of(brought)
        size, reply_topic = size_of(record, ids), headers.reply_topic or rules.reply_topic
        item = InFlight(record, ownership, now.monotonic, deadline, headers, reply_topic, wire, size)
        if headers.reply_topic is not None and (denied := self._denied(item)):
            return denied
        change: Change | None = "set" if history is not None else None if append is None else "extend"
        if brought is not None and (wrong := self._wrong_ids(brought)):
            return Outcome(item, wrong, "validate")
        if deadline <= now.monotonic:  # what happened has happened, though
            self._operate(item, wire.user_id, change, brought)
            return Outcome(item, RequestError("expired", "the deadline had passed when the request was read"), "admit")
        if self._repeats.enabled and (repeat := self._repeat(item, wire)):
            self._operate(item, wire.user_id, change, brought)
            return repeat
        try:
            self._fill(item, wire, rules)
        except Exception as error:
            return _invalid(item, error)
        if wire.tokens is None:
            self._operate(item, wire.user_id, change, brought, history is None)
        return item

    def resume(self, item: InFlight, history: ItemIds) -> InFlight | Outcome:
        """A request whose history was looked up."""
        try:
            if item.request is not None:
                item.request.history = history
                self._engine.validate(item.request)
                item.tokens = self._engine.estimate_tokens(item.request)
                if self._load.coalesce:
                    item.run_key = run_key(item.user, item.request)
        except Exception as error:
            return _invalid(item, error)
        return item

    def _wrong_ids(self, items: ItemIds) -> RequestError | None:
        """What the catalog cannot use must not take the place of what is held."""
        try:
            self._engine.check_ids(items)
        except RequestError as error:
            return error.as_answer()
        return None

    def _event(
        self, record: SourceRecord, ownership: Ownership, now: Moment, headers: RequestHeaders, wire: WireEvent
    ) -> Outcome | Done:
        item = self._item(record, ownership, now, headers, wire, memory_of(wire.items))
        if headers.error is not None:
            return Outcome(item, RequestError("bad_request", headers.error), "validate")
        if wire.type == "event":
            if wrong := self._wrong_ids(wire.items):
                return Outcome(item, wrong, "validate")
            self._operate(item, wire.user_id, "append", wire.items, told=False)
        elif wire.type == "forget":
            self._repeats.forget(wire.user_id)
            self._operate(item, wire.user_id, "forget", told=False)
        return Done(item, wire.cancels)

    @staticmethod
    def _operate(
        item: InFlight,
        user: str | None,
        change: Change | None,
        items: ItemIds | None = None,
        waits: bool = False,
        told: bool | None = None,
    ) -> None:
        """Have it go by the user's history: to change it, to be answered from it (``waits``), or both."""
        if user is None or (change is None and not waits):
            return
        ownership, offset = item.ownership, item.record.offset
        partition = ownership.partition
        key = UserKey(partition.topic, user)
        if change == "set" and items is not None:
            item.operation = Brought(key, partition, ownership.epoch, offset, items)
            return
        item.operation = Operation(
            item,
            key,
            partition,
            ownership.epoch,
            offset,
            change,
            item.admitted,
            NO_ITEMS if items is None else items,
            waits,
            not waits if told is None else told,
            size=item.size,
        )

    def _repeat(self, item: InFlight, wire: WireRequest) -> Repeat | None:
        if item.headers.error is not None:
            return None
        held = wire.history is None and wire.tokens is None
        identity = identity_of(item.record, item.headers, placed=held)
        found = self._repeats.get(identity, wire.catalog)
        if found is None:
            item.identity = identity
            return None
        return Repeat(item, found.value, found.catalog)

    def _fill(self, item: InFlight, wire: WireRequest, rules: TopicRules) -> None:
        if item.headers.error is not None:
            raise RequestError("bad_request", item.headers.error)
        request = rules.resolver.resolve(wire)
        self._engine.validate(request)
        history = request.history
        if history is not None and len(history) > self._cap.most and (excess := self._cap.excess(len(history))):
            request.history = history[excess:]  # what no prompt shows is not judged by its length either
        item.tokens = self._engine.estimate_tokens(request)
        item.request = request
        item.priority = wire.priority
        load = self._load
        item.caller = item.record.topic if load.share_label is None else self._caller(load.share_label, wire)
        if load.coalesce:
            item.run_key = run_key(item.user, request)

    def _caller(self, label: str, wire: WireRequest) -> str:
        """Who has a share of the engine. A value of a label that has no share of its own shares that of the others:
        else whoever says another one with each request has as many shares.
        """
        named, shares = wire.labels.get(label, ""), self._load.shares
        return named if named in shares or not shares else ""

    def _item(
        self,
        record: SourceRecord,
        ownership: Ownership,
        now: Moment,
        headers: RequestHeaders,
        addressee: WireError | WireEvent,
        ids: int = 0,
    ) -> InFlight:
        """Of a record that is no request."""
        named = addressee.request_id is not None or headers.correlation_id is not None
        if isinstance(addressee, WireEvent) or addressee.event:
            named = False
        return InFlight(
            record,
            ownership,
            now.monotonic,
            _NO_DEADLINE,
            headers,
            (headers.reply_topic or self._rules[record.topic].reply_topic) if named else None,
            addressee,
            size_of(record, ids),
        )

    def _denied(self, item: InFlight) -> Denied | None:
        asked = item.headers.reply_topic
        if asked is None or (reply_topic_allowed(asked, self._reply_topics) and asked not in self._closed):
            return None
        return Denied(item, f"reply topic {asked!r} is not allowed")


def _invalid(item: InFlight, error: Exception) -> Outcome:
    """A request that is refused, or whose validation failed."""
    if isinstance(error, RequestError):
        return Outcome(item, error.as_answer(), "validate")
    log.error("a request could not be validated", exc_info=error)
    return Outcome(item, RequestError("internal", f"validation failed: {type(error).__name__}"), "validate")
