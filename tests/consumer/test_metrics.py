"""Metrics: what the observer counts, that they are documented, that their number stays the same."""

import random
import re
from pathlib import Path
from threading import Thread
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from consumer.fleet.status import RESTARTS
from consumer.service.histogram import BulkHistogram
from consumer.service.metrics import Metrics
from consumer.service.observer import RECENT_S, RECENT_VALUES, MetricsObserver, Recent
from consumer.serving.observer import Replied, ServingObserver
from docs.generate import DOCS, PAGES
from engine.errors import ErrorCode

DEPLOY = Path(__file__).parents[2] / "deploy"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def series(metrics: Metrics) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in metrics.registry.collect()
        for sample in family.samples
    }


def everything_happens(observer: ServingObserver, times: int) -> None:
    dice = random.Random(times)
    for n in range(times):
        observer.received(3, 900)
        observer.bad_record(dice.choice(["bad_request", "too_large", f"never heard of {n}"]))
        observer.clock_skew(1.5)
        observer.batch_closed(
            dice.randint(1, 16), 2000, dice.choice(["idle", "requests", "tokens", "window", "deadline"])
        )
        observer.batch_finished(dice.random(), dice.random())
        observer.coalesced(2)
        observer.turned_away(dice.choice(["late", "quota"]))
        observer.degraded(["beam", "history"])
        observer.batch_failed(2)
        observer.expired(dice.choice(["admission", "queue", "reply"]))
        new_code = cast("ErrorCode", f"new code {n}")
        observer.replied(
            Replied(
                [1.0], [10.0], [20.0], [dice.random()], [50.0] * 3, 1, [dice.choice(["internal", new_code]), "expired"]
            )
        )
        observer.repeated()
        observer.dead_letter(dice.choice(["bad_request", "reply_topic_denied", f"reason {n}"]))
        observer.late_result()
        observer.committed(n % 2 == 0)
        observer.rebalanced("assigned", 8)
        observer.offset_reset(10)
        observer.paused(0.5)
        observer.client_error(dice.choice(["consumer", "producer"]), f"_CODE_{n}")


def test_events_are_counted() -> None:
    metrics = Metrics()
    everything_happens(MetricsObserver(metrics, Clock()), 10)
    assert metrics.count("records_total") == 30
    assert metrics.count("replies_total") == 30
    assert metrics.count("replies_total", status="error") == 10
    assert metrics.count("commits_total", result="failed") == 5
    assert metrics.count("answers_in_time_total") == metrics.count("turned_away_total") == 10
    assert metrics.count("degraded_total", step="history") == 10
    assert metrics.count("coalesced_total") == 20
    assert metrics.count("offset_reset_skipped_total") == 100
    assert metrics.count("request_seconds_count", phase="total") == 10
    assert metrics.count("request_seconds_count", phase="confirmed") == 30


def test_the_number_of_series_does_not_grow_with_what_happens() -> None:
    metrics = Metrics()
    observer = MetricsObserver(metrics, Clock())
    before = series(metrics)
    everything_happens(observer, 1)
    everything_happens(observer, 50)
    assert series(metrics) == before


def test_every_metric_has_a_name_a_type_and_a_meaning() -> None:
    metrics = Metrics()
    assert len({metric.name for metric in metrics.definitions}) == len(metrics.definitions)
    for metric in metrics.definitions:
        assert re.fullmatch(r"recallstream_[a-z_]+", metric.name)
        assert metric.help.endswith(".")
        assert (metric.kind == "counter") == metric.name.endswith("_total")


@pytest.mark.parametrize("page", PAGES)
def test_the_generated_pages_are_current(page: str) -> None:
    assert (DOCS / page).read_text() == PAGES[page](), "run: make docs"


@pytest.mark.parametrize("file", ["alerts.yaml", "grafana.json", "kubernetes/scaledobject.yaml"])
def test_the_dashboard_and_the_alerts_ask_for_metrics_that_exist(file: str) -> None:
    known = {f"{RESTARTS}_total"}
    for metric in Metrics().definitions:
        known.add(metric.name)
        if metric.kind == "histogram":
            known |= {metric.name + suffix for suffix in ("_bucket", "_sum", "_count")}
    used = set(re.findall(r"recallstream_\w+", (DEPLOY / file).read_text()))
    assert used
    assert used <= known


@given(st.lists(st.floats(0, 4) | st.sampled_from([0.5, 1.0, 2.0]), max_size=30), st.integers(1, 7))
def test_a_bulk_histogram_reads_like_one_of_the_prometheus_client(values: list[float], step: int) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    bulk = BulkHistogram("h_seconds", "A help.", (0.5, 1, 2.0), "phase", ("a", "b"), ours)
    plain = Histogram("h_seconds", "A help.", ("phase",), buckets=(0.5, 1, 2.0), registry=theirs)
    for phase in ("a", "b"):
        plain.labels(phase)
    for begin in range(0, len(values), step):
        bulk.labels("a").observe_many(np.array(values[begin : begin + step]))
    for value in values:
        plain.labels("a").observe(value)
    want = {(each.name, *each.labels.values()): each.value for family in theirs.collect() for each in family.samples}
    got = {(each.name, *each.labels.values()): each.value for family in ours.collect() for each in family.samples}
    assert got == pytest.approx(want)
    assert generate_latest(ours).splitlines()[:2] == generate_latest(theirs).splitlines()[:2]


def test_no_reply_is_lost_or_counted_twice_while_others_read_the_metrics() -> None:
    metrics = Metrics()
    observer = MetricsObserver(metrics, Clock())

    def reply() -> None:
        for _ in range(5_000):
            observer.replied(Replied([0.0], [0.0], [0.0], [20.0], [50.0]))

    threads = [Thread(target=reply) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        metrics.count("replies_total")
    assert metrics.count("replies_total", status="ok") == 10_000
    assert metrics.count("request_seconds_count", phase="total") == 10_000
    assert metrics.count("request_seconds_bucket", phase="confirmed", le="0.05") == 10_000


def test_percentiles_of_known_values() -> None:
    recent = Recent(Clock())
    assert recent.percentile(50) is None
    assert recent.mean() is None
    for value in range(100, 0, -1):
        recent.add(float(value))
    assert (recent.percentile(50), recent.percentile(99), recent.percentile(100)) == (50.0, 99.0, 100.0)
    assert recent.mean() == 50.5


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0.1, 100))
def test_a_percentile_covers_its_share(values: list[float], percent: float) -> None:
    recent = Recent(Clock())
    for value in values:
        recent.add(value)
    found = recent.percentile(percent)
    assert found in values
    assert found is not None
    assert sum(value <= found for value in values) >= len(values) * percent / 100 - 1e-9


def test_old_values_are_forgotten_and_memory_is_bounded() -> None:
    clock = Clock()
    recent = Recent(clock)
    recent.add(7.0)
    clock.now += RECENT_S + 1
    assert recent.values() == []
    for value in range(RECENT_VALUES + 10):
        recent.add(float(value))
    assert len(recent.values()) == RECENT_VALUES


@given(st.lists(st.integers(0, RECENT_VALUES + 5), max_size=6))
def test_of_values_that_come_together_the_last_are_kept(sizes: list[int]) -> None:
    recent, all_values = Recent(Clock()), list[float]()
    for size in sizes:
        together = [float(len(all_values) + number) for number in range(size)]
        recent.add(*together)
        all_values += together
    assert recent.values() == all_values[-RECENT_VALUES:]
