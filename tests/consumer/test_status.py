"""Readiness, faults and the status document, from what the parts report."""

from typing import Any

from catalog_sync.state import WatcherSnapshot
from consumer.service.settings import ServiceSettings
from consumer.service.status import ServiceStatus
from consumer.serving.observer import Replied
from consumer.serving.snapshot import PartitionSnapshot, ServingSnapshot
from consumer.stream.group import GroupView

SETTINGS = ServiceSettings.model_validate(
    {"engine": {"model": "m"}, "http": {"stalled_after_s": 60.0}, "kafka": {"sasl_password": "hunter2"}}
)


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


class Fixed:
    """A part whose snapshot the test sets."""

    def __init__(self, snapshot: Any) -> None:
        self.now = snapshot

    def snapshot(self) -> Any:
        return self.now


class Engine:
    device = "cpu"

    def stats(self) -> dict[str, float]:
        return {"context_pages": 2048, "context_pages_used": 3}


def watcher(active: str | None = "v2", **changes: Any) -> WatcherSnapshot:
    values: dict[str, Any] = {
        **{"state": "current", "active": active, "previous": "v1", "generation": 7, "target": active},
        **{"reason": None, "error": None, "activated": 2, "refused": {}, "polls": 5, "notices": 2, "reconnects": 0},
        **{"staleness_seconds": 0.5, "resident_bytes": 1000},
    }
    return WatcherSnapshot(**values | changes)


def partition(
    number: int = 0, committed: int | None = 90, lag: int | None = 10, topic: str = "recall.requests"
) -> PartitionSnapshot:
    return PartitionSnapshot(topic, number, 1, 95, committed, 100, lag, 0.25, 5)


def serving(*partitions: PartitionSnapshot, **changes: Any) -> ServingSnapshot:
    values: dict[str, Any] = {
        **{"partitions": partitions, "queued": 2, "queued_tokens": 600, "running": 3, "in_flight": 5},
        **{"in_flight_bytes": 5000, "paused": False, "tick_age": 0.01, "not_ready": (), "failure": None},
    }
    return ServingSnapshot(**values | changes)


def test_readiness_follows_the_start_step_by_step() -> None:
    status = ServiceStatus(SETTINGS)
    assert status.unready() == ("the model is loading",)
    status.starting = "waiting for the first catalog"
    status.watcher = catalog = Fixed(watcher(active=None, error="Redis: refused"))
    assert status.unready() == ("waiting for the first catalog", "no catalog is active: Redis: refused")
    catalog.now = watcher(active=None, state="refused", target="bad", error="chunk 0 is damaged")
    assert status.unready()[-1] == "no catalog is active: bad is refused: chunk 0 is damaged"
    catalog.now = watcher()
    status.starting = "the engine is warming up"
    assert status.unready() == ("the engine is warming up",)
    status.starting = None
    status.serving = loop = Fixed(serving(not_ready=("not a member of the consumer group yet",)))
    assert status.unready() == ("not a member of the consumer group yet",)
    loop.now = serving(partition())
    assert status.unready() == ()
    loop.now = serving(partition(), not_ready=("draining",))
    assert status.unready() == ("draining",)


def test_a_process_that_starts_or_has_no_catalog_is_alive() -> None:
    status = ServiceStatus(SETTINGS)
    status.watcher = Fixed(watcher(active=None))
    assert status.faults() == ()


def test_a_loop_that_stands_still_is_a_fault() -> None:
    status = ServiceStatus(SETTINGS)
    status.serving = loop = Fixed(serving(partition(), tick_age=59.0))
    assert status.faults() == ()
    loop.now = serving(partition(), tick_age=61.0)
    assert status.faults() == ("the intake loop has not turned for 61 s",)


def test_a_failed_loop_is_a_fault() -> None:
    status = ServiceStatus(SETTINGS)
    status.serving = Fixed(serving(failure="device: lost"))
    assert status.faults() == ("failed: device: lost",)


def test_a_partition_that_stands_still_is_a_fault_and_the_others_are_none() -> None:
    clock = Clock()
    status = ServiceStatus(SETTINGS, clock)
    status.serving = loop = Fixed(serving(partition(0, committed=90), partition(1, committed=90), partition(2, lag=0)))
    assert status.faults() == ()
    clock.now += 60
    loop.now = serving(partition(0, committed=95), partition(1, committed=90), partition(2, lag=0))
    assert status.faults() == ("partition 1 of recall.requests stands still",)
    status.refresh()
    assert status.registry.get_sample_value("recallstream_partitions_stalled") == 1


def test_the_document_says_what_an_operator_asks() -> None:
    status = ServiceStatus(SETTINGS)
    status.engine, status.model, status.starting = Engine(), "films-1", None
    status.watcher = Fixed(watcher())
    status.serving = Fixed(serving(partition(0), partition(1, lag=None)))
    status.observer.replied(Replied([0.0] * 3, [0.0] * 3, [0.0] * 3, [10.0, 20.0, 30.0], [10.0, 20.0, 30.0], 1))
    status.observer.batch_closed(8, 1000, "idle")
    status.observer.turned_away("quota")
    status.observer.degraded(["beam"])
    status.observer.coalesced(2)
    document = status.status()
    assert document["service"]["ready"] is True
    assert (document["stream"]["lag_messages"], document["stream"]["lag_seconds"]) == (10, 0.25)
    assert document["batch"] == {"requests": 8.0, "max_requests": 16, "fill": 0.5}
    assert document["latency_ms"] == {"p50": 20.0, "p99": 30.0}
    assert (document["catalog"]["active"], document["catalog"]["previous"]) == ("v2", "v1")
    assert document["engine"]["context_pages_used"] == 3
    assert document["load"] == {
        "step": 0,
        "prediction_errors": {},
        "answers_in_time": 1,
        "turned_away": {"late": 0, "quota": 1},
        "degraded": {"beam": 1, "history": 0, "last_reply": 0},
        "coalesced": 2,
    }
    assert document["replies"] == {"ok": 3, "expired": 0, "rejected": 0, "error": 0}
    assert "hunter2" not in str(document)


def test_the_last_refusal_is_remembered_after_the_catalog_is_well_again() -> None:
    status = ServiceStatus(SETTINGS)
    status.watcher = catalog = Fixed(watcher(state="refused", target="v3", reason="checksum", error="chunk 3 differs"))
    refusal = {"version": "v3", "reason": "checksum", "message": "chunk 3 differs"}
    assert status.status()["catalog"]["last_refusal"] == refusal
    catalog.now = watcher()
    assert status.status()["catalog"]["last_refusal"] == refusal


def test_gauges_follow_and_partitions_that_left_are_gone() -> None:
    status = ServiceStatus(SETTINGS)
    status.watcher = catalog = Fixed(watcher(refused={"checksum": 2}))
    status.serving = loop = Fixed(serving(partition(0), partition(1)))
    value = status.registry.get_sample_value
    status.refresh()
    assert value("recallstream_lag_messages", {"topic": "recall.requests", "partition": "1"}) == 10
    assert value("recallstream_catalog_info", {"role": "active", "version": "v2"}) == 1
    loop.now, catalog.now = serving(partition(0)), watcher(active="v3", refused={"checksum": 3})
    status.refresh()
    assert value("recallstream_lag_messages", {"topic": "recall.requests", "partition": "1"}) is None
    assert value("recallstream_catalog_info", {"role": "active", "version": "v2"}) is None
    assert value("recallstream_catalog_info", {"role": "active", "version": "v3"}) == 1
    assert value("recallstream_catalog_refusals_total", {"reason": "checksum"}) == 3


def test_a_topic_that_is_no_longer_served_leaves_no_series() -> None:
    status = ServiceStatus(SETTINGS)
    status.serving = loop = Fixed(serving(partition(0), partition(0, topic="other")))
    status.refresh()
    assert topics_of(status) == {"recall.requests", "other"}
    loop.now = serving(partition(0))
    status.refresh()
    assert topics_of(status) == {"recall.requests"}


def topics_of(status: ServiceStatus) -> set[str]:
    samples = (sample for family in status.registry.collect() for sample in family.samples)
    return {sample.labels["topic"] for sample in samples if "topic" in sample.labels}


def test_a_hundred_catalog_versions_leave_two_series() -> None:
    status = ServiceStatus(SETTINGS)
    status.watcher = catalog = Fixed(watcher())
    for number in range(100):
        catalog.now = watcher(active=f"v{number + 1}", previous=f"v{number}")
        status.refresh()
    (family,) = (family for family in status.registry.collect() if family.name == "recallstream_catalog_info")
    shown = {(sample.labels["role"], sample.labels["version"]) for sample in family.samples}
    assert shown == {("active", "v100"), ("previous", "v99")}


def test_the_group_protocol_is_shown_and_the_one_before_is_gone() -> None:
    status = ServiceStatus(SETTINGS)
    refused = "consumer.session.timeout.ms: Group authorization failed."
    status.serving = loop = Fixed(serving(group=GroupView("consumer", refused)))
    status.refresh()
    value = status.registry.get_sample_value
    assert value("recallstream_group_protocol", {"protocol": "consumer"}) == 1
    assert value("recallstream_group_config_refused") == 1
    stream = status.status()["stream"]
    assert (stream["group_protocol"], stream["group_config_refused"]) == ("consumer", refused)
    loop.now = serving(group=GroupView("classic"))
    status.refresh()
    assert value("recallstream_group_protocol", {"protocol": "consumer"}) is None
    assert value("recallstream_group_protocol", {"protocol": "classic"}) == 1
    assert value("recallstream_group_config_refused") == 0


def test_a_rollback_and_what_was_condemned_are_in_the_metrics_and_the_document() -> None:
    status = ServiceStatus(SETTINGS)
    status.watcher = Fixed(
        watcher(
            active="v1",
            target="v2",
            state="rolled_back",
            reason="empty_rate",
            error="40 % had no items",
            rolled_back=1,
            condemned={"v2": "empty_rate: 40 % had no items"},
            sizes={"v1": 5},
            pinned=True,
        )
    )
    status.refresh()
    value = status.registry.get_sample_value
    assert value("recallstream_catalog_rollbacks_total") == 1
    assert value("recallstream_catalog_condemned") == 1
    assert value("recallstream_catalog_pinned") == 1
    document = status.catalog()
    assert document["here"]["condemned"] == {"v2": "empty_rate: 40 % had no items"}
    assert (document["here"]["resident"], document["fleet"]) == ({"v1": 5}, None)
