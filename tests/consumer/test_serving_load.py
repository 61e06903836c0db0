"""Requests that wait in the running loop: who goes first, who shares a run, who is served with less or turned away."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from consumer.serving.cost_model import Prior
from consumer.serving.load_settings import LoadSettings
from engine.catalog.resident import ResidentCatalog
from tests.consumer.serving_harness import Harness, Member, harness, now_ms
from tests.consumer.waiting import eventually
from tests.engine.catalogs import Item, catalog_of


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness() as each:
        yield each


class Catalogs:
    """One version, with items 0 to 9."""

    def __init__(self) -> None:
        catalog = catalog_of([Item(n, (n,)) for n in range(10)], (10,))
        self._resident = ResidentCatalog(catalog, torch.device("cpu"))

    @contextmanager
    def pin(self, version: str | None = None) -> Iterator[ResidentCatalog]:
        yield self._resident


def occupy(made: Harness, member: Member) -> None:
    """The engine works on a request of somebody until its gate is set."""
    member.engine.gate.clear()
    made.send("somebody", key=b"somebody")
    made.flush()
    eventually(member.engine.busy.is_set)


def test_a_higher_priority_overtakes_and_all_are_answered(made: Harness) -> None:
    member = made.member(max_requests=1)
    occupy(made, member)
    for priority in (1, 5, 9):
        made.send(f"p{priority}", priority=priority)
    made.flush()
    eventually(lambda: member.snapshot().queued == 3)
    member.engine.gate.set()
    names = [received.reply.request_id for received in made.replies.wait(4) if received.key == b"user"]
    assert names == ["p9", "p5", "p1"]
    eventually(lambda: made.committed() == 4)


def test_waiting_requests_of_a_user_become_one_run_and_each_has_its_own_reply(made: Harness) -> None:
    member = made.member(load=LoadSettings(coalesce=True))
    occupy(made, member)
    made.send("old", history=[1, 2], top_k=4, labels={"channel": "home"})
    made.send("other", history=[7], key=b"other")
    made.send("new", history=[1, 2, 5], top_k=2)
    made.flush()
    eventually(lambda: member.snapshot().queued == 3)
    member.engine.gate.set()
    replies = {received.reply.request_id: received.reply for received in made.replies.wait(4)}
    assert replies["old"].items.tolist() == [6, 7, 8, 9]  # type: ignore[union-attr]  # an array
    assert replies["new"].items.tolist() == [6, 7]  # type: ignore[union-attr]
    assert replies["other"].items.tolist() == [8, 9, 10]  # type: ignore[union-attr]
    assert (replies["old"].labels, replies["new"].labels) == ({"channel": "home"}, {})
    assert member.engine.batches == [1, 2]
    assert member.events.count["coalesced"] == 1
    eventually(lambda: made.committed() == 4)


def test_a_reply_says_what_was_given_up_for_it(made: Harness) -> None:
    slow = Prior(1.0, row=10.0, known=True)  # a beam of 4 would take 41 s, the deadline is in 30
    member = made.member(load=LoadSettings(degrade=("beam",)), prior=slow)
    made.send("r", top_k=1)
    (received,) = made.replies.wait(1)
    assert received.reply.degraded == ("beam",)
    assert received.reply.beam_widths == (2, 2, 2)
    assert member.events.count["degraded:beam"] == 1


def test_what_cannot_be_answered_in_time_is_rejected_at_once_and_committed(made: Harness) -> None:
    member = made.member(prior=Prior(1_000.0, known=True))
    occupy(made, member)
    made.send("late")
    (received,) = made.replies.wait(1, timeout=10)
    assert received.reply.status == "rejected"
    assert received.reply.error is not None
    assert received.reply.error.code == "overloaded"
    assert member.events.count["turned_away:late"] == 1
    assert member.events.count["dead:overloaded"] == 0
    member.engine.gate.set()
    made.replies.wait(2)
    eventually(lambda: made.committed() == 2)


def test_the_last_reply_of_a_user_is_sent_again_with_its_age_where_there_is_no_time(made: Harness) -> None:
    member = made.member(load=LoadSettings(degrade=("last_reply",)), prior=Prior(1.0, known=True), catalogs=Catalogs())
    member.engine.gate.clear()
    made.send("first", history=[1, 2])  # items 3, 4, 5
    made.flush()
    eventually(member.engine.busy.is_set)
    time.sleep(1.0)  # so long a batch takes from now on
    member.engine.gate.set()
    made.replies.wait(1)
    occupy(made, member)
    made.send("second", history=[1, 2, 9], exclude=[4], deadline_ms=now_ms() + 700)
    made.flush()
    made.replies.wait(2)
    member.engine.gate.set()
    replies = {received.reply.request_id: received.reply for received in made.replies.wait(3)}
    second = replies["second"]
    assert (second.status, second.items.tolist(), second.degraded) == ("ok", [3, 5], ("last_reply",))  # type: ignore[union-attr]
    assert 0 < second.timing_ms["age"] < 60_000
    assert "age" not in replies["first"].timing_ms
    eventually(lambda: made.committed() == 3)
