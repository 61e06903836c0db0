"""Every metric of the service, each with what it means; ``docs/metrics.md`` is written from here.

Labels take their values from short fixed lists and the partitions assigned, so the number of series stays bounded.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from consumer.service.histogram import BeforeCollect, BulkHistogram
from consumer.serving.load_settings import Step
from consumer.serving.observer import CloseReason, Reason, Rebalance, Stage
from consumer.wire.reply import Status
from engine.errors import ErrorCode

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ERRORS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
TOKENS = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)

# They double the number of series, and nobody asks for them.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library left it untyped

PREFIX = "recallstream_"
OTHER = "other"
"""Label of a value that no list knows, so that the lists stay short."""

ERROR_CODES: tuple[str, ...] = (*get_args(ErrorCode), OTHER)
DEAD_LETTER_REASONS: tuple[str, ...] = (
    *get_args(ErrorCode),
    "reply_topic_denied",
    "reply_topic_unknown",
    "reply_partition_unknown",
    "reply_too_large",
    "reply_refused",
    OTHER,
)

Kind = Literal["counter", "gauge", "histogram"]
Phase = Literal["queue", "prefill", "decode", "total", "confirmed"]


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric as it is documented."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]


class Metrics:
    """The metrics on a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.before_collect = BeforeCollect(self.registry)
        self.definitions: list[Definition] = []

        # What came in.
        self.records = self._counter("records_total", "Records read from the request topic.")
        self.record_bytes = self._counter("record_bytes_total", "Bytes of the values of the records read.")
        self.bad_records = self._counter(
            "bad_records_total", "Records that were no servable request, by error code.", code=ERROR_CODES
        )
        self.clock_skew = self._gauge(
            "clock_skew_seconds",
            "How far the last record stamped in our future lay there: a producer's clock is wrong.",
        )

        # What went out.
        self.replies = self._counter(
            "replies_total",
            "Replies that the brokers have acknowledged, by status.",
            status=get_args(Status),
        )
        self.reply_errors = self._counter(
            "reply_errors_total", "Replies that are not ok, by error code.", code=ERROR_CODES
        )
        self.in_time = self._counter(
            "answers_in_time_total", "Replies with items that the broker confirmed before their deadline: goodput."
        )
        self.turned_away = self._counter(
            "turned_away_total",
            "Requests not served because they could not be answered in time: too much was waiting (late), or their "
            "caller had more than its share (quota).",
            reason=get_args(Reason),
        )
        self.degraded = self._counter(
            "degraded_total", "Replies with items for which something was given up, by what.", step=get_args(Step)
        )
        self.coalesced = self._counter(
            "coalesced_total", "Requests answered by the run of a newer one of the same user."
        )
        self.expired = self._counter(
            "expired_total", "Requests whose deadline passed, by the stage that noticed.", stage=get_args(Stage)
        )
        self.dead_letters = self._counter(
            "dead_letters_total", "Records handed to the producer as dead letters.", reason=DEAD_LETTER_REASONS
        )
        self.late_results = self._counter(
            "late_results_total", "Requests finished after their partition had gone to another process."
        )
        self.repeats = self._counter(
            "repeats_total", "Requests that came again and were answered with the reply kept, without the engine."
        )
        self.latency = self._bulk_histogram(
            "request_seconds",
            "Time of a request: waiting for its batch, prefill, decode, admission to reply, admission to the broker's "
            "confirmation.",
            LATENCY_S,
            phase=get_args(Phase),
        )

        # Batches.
        self.batches = self._counter(
            "batches_total", "Batches given to the engine, by what closed them.", reason=get_args(CloseReason)
        )
        self.batch_requests = self._histogram("batch_requests", "Requests of a batch.", REQUESTS)
        self.batch_tokens = self._histogram("batch_tokens", "Context tokens of a batch, estimated.", TOKENS)
        self.batch_seconds = self._histogram("batch_seconds", "Time of a batch in the engine.", LATENCY_S)
        self.batch_error = self._histogram(
            "batch_prediction_error",
            "How far a batch's time was from its prediction, as a share of that time.",
            ERRORS,
        )
        self.failed_batches = self._counter("failed_batches_total", "Batches that the engine raised for.")

        # Kafka.
        self.lag = self._gauge(
            "lag_messages", "Records from the oldest unfinished one to the partition's end.", "topic", "partition"
        )
        self.lag_seconds = self._gauge(
            "lag_seconds", "Age of the partition's oldest unfinished record; 0 without one.", "topic", "partition"
        )
        self.partitions = self._gauge("partitions_assigned", "Partitions that this process owns.")
        self.stalled = self._gauge("partitions_stalled", "Partitions that have lag and do not move.")
        self.rebalances = self._counter(
            "rebalances_total", "Rebalances, by what happened to this process.", kind=get_args(Rebalance)
        )
        self.group_protocol = self._gauge("group_protocol", "1 for the protocol spoken with the group.", "protocol")
        self.group_config_refused = self._gauge(
            "group_config_refused", "1 where the brokers keep other times for the group than the settings ask for."
        )
        self.commits = self._counter(
            "commits_total", "Offset commits, or transactions, by result.", result=("ok", "failed")
        )
        self.skipped = self._counter(
            "offset_reset_skipped_total", "Records passed over because a committed offset was missing or gone."
        )
        self.client_errors = self._counter(
            "kafka_client_errors_total", "Errors that librdkafka handles itself.", client=("consumer", "producer")
        )

        # Load and life of the loop.
        self.in_flight = self._gauge("in_flight_requests", "Requests read and not yet confirmed.")
        self.in_flight_bytes = self._gauge("in_flight_bytes", "Bytes of the records of the requests in flight.")
        self.queued = self._gauge("queued_requests", "Requests that wait for a batch.")
        self.queued_tokens = self._gauge("queued_tokens", "Context tokens that wait for a batch, estimated.")
        self.paused = self._gauge("intake_paused", "1 while reading pauses because enough is in flight.")
        self.paused_seconds = self._counter("intake_paused_seconds_total", "Time that reading paused.")
        self.tick_age = self._gauge("loop_tick_age_seconds", "Time since the intake loop last turned.")
        self.ready = self._gauge("ready", "1 while /readyz says yes.")
        self.start_time = self._gauge("start_time_seconds", "When the process started, in seconds since the epoch.")
        self.build = self._gauge("build_info", "Always 1; the labels say what runs.", "version", "model", "device")

        # Catalogs.
        self.catalog = self._gauge("catalog_info", "1 for the active and the previous version.", "role", "version")
        self.catalog_generation = self._gauge("catalog_generation", "Generation of the pointer that was last acted on.")
        self.catalog_staleness = self._gauge(
            "catalog_staleness_seconds", "Time since the active version was last known to be the pointer's."
        )
        self.catalog_activations = self._counter("catalog_activations_total", "Catalog versions that went live.")
        self.catalog_rollbacks = self._counter(
            "catalog_rollbacks_total", "Times that this process went back to the version before: answers got worse."
        )
        self.catalog_condemned = self._gauge("catalog_condemned", "Versions that this process found bad.")
        self.catalog_pinned = self._gauge(
            "catalog_pinned", "1 while the group's pin names the version, not the pointer."
        )
        self.catalog_refusals = self._counter(
            "catalog_refusals_total", "Catalog versions refused, by reason; the resident one kept serving.", reason=()
        )
        self.catalog_polls = self._counter("catalog_polls_total", "Times that the catalog pointer was read.")
        self.catalog_notices = self._counter("catalog_notices_total", "Notices of a new pointer received.")
        self.catalog_reconnects = self._counter("catalog_reconnects_total", "Subscriptions lost and made anew.")
        self.catalog_bytes = self._gauge("catalog_resident_bytes", "Device bytes of all resident catalog versions.")

        # Users' histories.
        self.history_users = self._gauge("history_users", "Users whose history is held in the process.")
        self.history_bytes = self._gauge("history_bytes", "Memory of the histories held in the process.")
        self.history_lookups_waiting = self._gauge(
            "history_lookups_waiting", "Users whose history is being read from the store."
        )
        self.history_requests = self._counter(
            "history_requests_total",
            "Requests that bring no whole history: theirs was held in the process, was looked up, or there was none.",
            found=("held", "looked_up", "none"),
        )
        self.history_changes = self._counter(
            "history_changes_total",
            "Records that change a history: applied, or left out because they had been applied before.",
            result=("applied", "duplicate"),
        )
        self.history_forgotten = self._counter("history_forgotten_total", "Users forgotten.")
        self.history_evicted = self._counter("history_evicted_total", "Histories that had to leave the process.")
        self.history_writes = self._counter("history_writes_total", "Histories written to the store.")
        self.history_conflicts = self._counter(
            "history_conflicts_total", "Writes that found a history changed by another process, or lost."
        )
        self.history_unsaved = self._gauge("history_unsaved_users", "Users with records that the store does not have.")
        self.history_at_risk = self._gauge(
            "history_records_at_risk", "Records finished before the store has them: lost if the process dies now."
        )
        self.history_lag = self._gauge("history_write_lag_seconds", "Age of the oldest record that the store lacks.")
        self.history_errors = self._counter("history_store_errors_total", "Times that the store did not answer.")

        # Engine.
        self.pool = self._gauge("engine_pool", "State of the engine's memory pools, by figure.", "figure")

    def count(self, name: str, **labels: str) -> int:
        """Sum of a counter's series that carry these labels."""
        samples = (sample for family in self.registry.collect() for sample in family.samples)
        return int(sum(s.value for s in samples if s.name == PREFIX + name and labels.items() <= s.labels.items()))

    def _counter(self, name: str, text: str, **labels: Sequence[str]) -> Counter:
        self._define("counter", name, text, labels)
        counter = Counter(PREFIX + name, text, tuple(labels), registry=self.registry)
        for value in _known_values(labels):
            counter.labels(value)
        return counter

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        self._define("gauge", name, text, labels)
        return Gauge(PREFIX + name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        self._define("histogram", name, text, ())
        return Histogram(PREFIX + name, text, buckets=buckets, registry=self.registry)

    def _bulk_histogram(self, name: str, text: str, buckets: Sequence[float], **labels: Sequence[str]) -> BulkHistogram:
        self._define("histogram", name, text, labels)
        ((label, values),) = labels.items()
        return BulkHistogram(PREFIX + name, text, buckets, label, values, self.registry)

    def _define(self, kind: Kind, name: str, text: str, labels: Iterable[str]) -> None:
        self.definitions.append(Definition(PREFIX + name, kind, text, tuple(labels)))


def _known_values(labels: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Series are made before their first event: a rate sees it, and the number of series stays what it is."""
    (values,) = labels.values() or ((),)
    return tuple(values)
