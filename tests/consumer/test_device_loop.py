"""The device thread with an engine that runs several batches at a time."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import numpy as np
import pytest

from consumer.serving.batch_queue import BatchQueue
from consumer.serving.cost_model import CostModel, Prior
from consumer.serving.device import DeviceLoop
from consumer.serving.errands import Errands
from consumer.serving.in_flight import InFlight, Outcome
from consumer.serving.recaller import Answer, Recaller
from consumer.serving.settings import BatchSettings
from engine.errors import DeviceError, RequestError
from engine.request import BeamPolicy, RecallRequest, RecallResult
from tests.consumer.events import Events
from tests.consumer.fake_engine import FakeEngine, result_for
from tests.consumer.waiting import eventually

FAR = 1e12


@dataclass
class Batch:
    """A batch in the engine; it ends when the test says so."""

    requests: Sequence[RecallRequest]
    fault: Exception | None = None
    refused: int | None = None
    beside: bool = True
    finished: threading.Event = field(default_factory=threading.Event)

    @property
    def names(self) -> list[int]:
        return [name_of(request) for request in self.requests]

    @property
    def done(self) -> bool:
        return self.finished.is_set()

    def collect(self) -> list[Answer]:
        self.finished.wait()
        if self.fault is not None:
            raise self.fault
        refusal = RequestError("bad_request", "as the test says")
        return [refusal if name_of(request) == self.refused else result_for(request) for request in self.requests]


@dataclass
class Engine(FakeEngine):
    """``faulty``: batches that hold this request raise when they are collected, or ``at_submit``.

    ``at_once``: batches end while they are submitted. ``refused``: answered ``bad_request``.
    """

    submitted: list[Batch] = field(default_factory=list)
    faulty: int | None = None
    fault_of: Callable[[], Exception] = ZeroDivisionError
    at_submit: bool = False
    at_once: bool = False
    refused: int | None = None

    def submit(  # type: ignore[override]  # runs on, unlike its base
        self, requests: Sequence[RecallRequest], *, beside: bool = True
    ) -> Batch:
        batch = Batch(requests, refused=self.refused, beside=beside)
        if self.faulty in batch.names:
            batch.fault = self.fault_of()
            if self.at_submit:
                raise batch.fault
        if self.at_once:
            batch.finished.set()
        self.submitted.append(batch)
        return batch


def request_of(name: int) -> RecallRequest:
    return RecallRequest(BeamPolicy((1, 1, 1)), top_k=1, history=np.array([name]))


def name_of(request: RecallRequest) -> int:
    assert request.history is not None
    return int(request.history[0])


@dataclass(eq=False)
class Waiting:
    """Only what the queue and the device thread look at."""

    request: RecallRequest
    tokens: int = 1
    admitted: float = field(default_factory=time.monotonic)
    deadline: float = FAR
    started: float | None = None
    priority: int = 5
    caller: str = ""
    run_key: str | None = None

    @property
    def asked(self) -> RecallRequest:
        return self.request


@dataclass
class Loop:
    engine: Engine
    queue: BatchQueue
    device: DeviceLoop
    events: Events
    outcomes: list[Outcome]
    errands: Errands
    judged: list[list[int]] = field(default_factory=list)
    turned_away: list[object] = field(default_factory=list)
    error: list[BaseException] = field(default_factory=list)

    def add(self, *names: int) -> None:
        self.queue.add([cast(InFlight, Waiting(request_of(name))) for name in names])

    def submitted(self) -> list[list[int]]:
        return [batch.names for batch in self.engine.submitted]

    def answered(self) -> list[int]:
        return [name_of(cast(RecallRequest, outcome.item.request)) for outcome in self.outcomes]

    def has_answered(self, count: int) -> bool:
        return len(self.outcomes) == count

    def run(self) -> None:
        try:
            self.device.run()
        except BaseException as error:  # the test looks at it
            self.error.append(error)


@contextmanager
def loop(engine_seconds: float = 0.0, engine: Engine | None = None, **settings: float) -> Iterator[Loop]:
    """A running device thread whose batches are expected to take ``engine_seconds``."""
    engine, events, outcomes = engine or Engine(), Events(), list[Outcome]()
    errands, judged = Errands(), list[list[int]]()
    costs = CostModel(Prior(engine_seconds or 1e-9))
    turned_away: list[object] = []
    queue = BatchQueue(
        BatchSettings.model_validate(settings),
        time.monotonic,
        lambda _: None,
        errands,
        costs=costs,
        turned_away=turned_away.extend,
    )
    device = DeviceLoop(
        cast(Recaller, engine),
        queue,
        outcomes.extend,
        events,
        time.monotonic,
        lambda requests, _: judged.append([name_of(request) for request in requests]),
    )
    made = Loop(engine, queue, device, events, outcomes, errands, judged, turned_away)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        queue.close()
        engine.at_once = True
        for batch in engine.submitted:
            batch.finished.set()
        thread.join(10)
        assert not thread.is_alive()


def test_a_second_batch_is_submitted_while_the_first_runs_and_a_third_is_not() -> None:
    with loop() as made:
        made.add(1)
        eventually(lambda: made.submitted() == [[1]])
        made.add(2)
        eventually(lambda: made.submitted() == [[1], [2]])
        made.add(3)
        assert made.device.running == 2
        made.engine.submitted[0].finished.set()
        eventually(lambda: made.submitted() == [[1], [2], [3]])
        assert made.answered() == [1]
        made.engine.submitted[2].finished.set()
        made.engine.submitted[1].finished.set()
        eventually(lambda: made.answered() == [1, 2, 3])
        eventually(lambda: made.device.running == 0)


def test_the_next_batch_gathers_while_the_running_one_has_long_to_go() -> None:
    with loop(engine_seconds=1.0, window_ms=0) as made:
        made.add(1)
        eventually(lambda: made.submitted() == [[1]])
        for name in (2, 3, 4):
            made.add(name)
        eventually(lambda: len(made.submitted()) == 2)
        assert made.submitted() == [[1], [2, 3, 4]]


def test_a_batch_runs_beside_the_searches_under_way_only_where_others_wait() -> None:
    with loop(engine_seconds=1e6, max_requests=2) as made:
        made.add(1)
        eventually(lambda: made.submitted() == [[1]])
        made.add(2, 3, 4, 5)
        eventually(lambda: made.submitted() == [[1], [2, 3]])
        made.engine.submitted[0].finished.set()
        eventually(lambda: made.submitted() == [[1], [2, 3], [4, 5]])
        assert [batch.beside for batch in made.engine.submitted] == [False, True, False]


def test_a_full_batch_does_not_wait() -> None:
    with loop(engine_seconds=1e6, max_requests=2) as made:
        made.add(1)
        eventually(lambda: made.submitted() == [[1]])
        made.add(2)
        made.add(3)
        eventually(lambda: made.submitted() == [[1], [2, 3]])


def test_a_batch_that_ends_early_is_answered_at_once() -> None:
    with loop(engine_seconds=1e6) as made:
        made.add(1)
        eventually(lambda: made.submitted() == [[1]])
        made.engine.submitted[0].finished.set()
        eventually(lambda: made.answered() == [1])


def test_an_engine_that_answers_while_it_is_asked_runs_one_batch_at_a_time() -> None:
    with loop(engine_seconds=1e6, engine=Engine(at_once=True)) as made:
        for name in range(5):
            made.add(name)
            eventually(partial(made.has_answered, name + 1))
        assert made.submitted() == [[0], [1], [2], [3], [4]]


def test_only_the_culprit_of_a_batch_is_answered_internal_and_its_neighbour_in_the_engine_is_not_touched() -> None:
    with loop(engine=Engine(faulty=12), max_requests=4) as made:
        made.add(11, 12, 13, 14)
        eventually(lambda: len(made.submitted()) == 1)
        made.add(20)
        eventually(lambda: len(made.submitted()) == 2)
        made.engine.at_once = True
        for batch in made.engine.submitted:
            batch.finished.set()
        eventually(lambda: len(made.answered()) == 5)
        assert made.answered() == [11, 12, 13, 14, 20]
        codes = [getattr(outcome.answer, "code", "ok") for outcome in made.outcomes]
        assert codes == ["ok", "internal", "ok", "ok", "ok"]
        assert made.submitted() == [[11, 12, 13, 14], [20], [11, 12], [11], [12], [13, 14]]
        assert made.events.count["batch_failed"] == 3


@pytest.mark.parametrize("when", ["submit", "collect"])
def test_a_lost_device_ends_the_thread_with_nothing_answered(when: str) -> None:
    engine = Engine(faulty=1, fault_of=lambda: DeviceError("lost"), at_submit=when == "submit")
    with loop(engine=engine) as made:
        made.add(1)
        if when == "collect":
            eventually(lambda: len(made.submitted()) == 1)
            made.add(2)
            eventually(lambda: len(made.submitted()) == 2)
            made.engine.submitted[1].finished.set()
            made.engine.submitted[0].finished.set()
        eventually(lambda: made.error)
        assert isinstance(made.error[0], DeviceError)
        assert made.outcomes == []


def test_what_is_in_the_engine_when_the_queue_closes_is_answered() -> None:
    with loop() as made:
        made.add(1)
        eventually(lambda: len(made.submitted()) == 1)
        made.add(2)
        eventually(lambda: len(made.submitted()) == 2)
        made.queue.close()
        for batch in made.engine.submitted:
            batch.finished.set()
        eventually(lambda: made.answered() == [1, 2])
        assert all(isinstance(outcome.answer, RecallResult) for outcome in made.outcomes)
        assert not any(isinstance(outcome.answer, RequestError) for outcome in made.outcomes)


def test_the_time_of_a_batch_begins_when_the_one_before_it_ends() -> None:
    with loop() as made:
        made.add(1)
        eventually(lambda: len(made.submitted()) == 1)
        made.add(2)
        eventually(lambda: len(made.submitted()) == 2)
        begin = time.monotonic()
        eventually(lambda: time.monotonic() - begin > 0.2)
        made.engine.submitted[0].finished.set()
        made.engine.submitted[1].finished.set()
        eventually(lambda: made.answered() == [1, 2])
        first, second = made.events.seconds
        assert first > 0.2
        assert second < 0.1


def test_an_errand_wakes_an_idle_device_thread_and_is_no_batch() -> None:
    with loop(engine=Engine(at_once=True)) as made:
        answers = made.errands.ask([request_of(7), request_of(8)]).result(5)
        assert [answer.items.tolist() for answer in answers] == [[8], [9]]  # type: ignore[union-attr]
        made.add(1)
        eventually(lambda: made.has_answered(1))
        assert (made.submitted(), made.judged) == ([[7, 8], [1]], [[1]])
        assert len(made.events.seconds) == 1


def test_an_errand_goes_beside_the_batch_that_runs_and_leaves_the_order_alone() -> None:
    with loop(engine_seconds=1e-6, max_requests=2) as made:
        made.add(1, 2)
        eventually(lambda: made.submitted() == [[1, 2]])
        asked = made.errands.ask([request_of(9)])
        eventually(lambda: made.submitted() == [[1, 2], [9]])
        made.add(3, 4, 5)
        made.engine.at_once = True
        for batch in made.engine.submitted:
            batch.finished.set()
        eventually(lambda: made.has_answered(5))
        assert asked.result(5)
        assert made.answered() == [1, 2, 3, 4, 5]


def test_an_errand_that_makes_the_engine_raise_harms_no_batch() -> None:
    with loop(engine=Engine(faulty=9, at_submit=True, at_once=True)) as made:
        bad, good = made.errands.ask([request_of(9), request_of(8)]).result(5)
        assert (cast(RequestError, bad).code, isinstance(good, RecallResult)) == ("internal", True)
        made.add(1)
        eventually(lambda: made.has_answered(1))
        assert made.error == []


def test_an_errand_given_up_is_not_served() -> None:
    errands = Errands()
    first, second = errands.ask([request_of(1)]), errands.ask([request_of(2)])
    assert first.cancel()
    taken = errands.take()
    assert taken is not None
    assert taken.answers is second
    assert errands.take() is None


def user_request(name: int, user: str = "u") -> RecallRequest:
    return replace(request_of(name), session=user)


def test_what_waits_when_its_user_is_forgotten_is_answered_and_leaves_no_session() -> None:
    with loop(engine_seconds=1e6) as made:
        made.add(1)
        eventually(lambda: made.submitted() == [[1]])
        made.queue.add([cast(InFlight, Waiting(user_request(2))), cast(InFlight, Waiting(user_request(3, "w")))])
        made.errands.forget("u")
        eventually(lambda: made.engine.forgotten == ["u"])
        made.engine.at_once = True
        for batch in made.engine.submitted:
            batch.finished.set()
        eventually(lambda: made.has_answered(3))
        made.queue.add([cast(InFlight, Waiting(user_request(4)))])
        eventually(lambda: made.has_answered(4))
        sessions = {name_of(each): each.session for batch in made.engine.submitted for each in batch.requests}
        assert sessions == {1: None, 2: None, 3: "w", 4: "u"}


def test_a_batch_that_is_tried_again_after_its_user_was_forgotten_leaves_no_session() -> None:
    with loop(engine=Engine(faulty=2)) as made:
        made.queue.add([cast(InFlight, Waiting(user_request(name))) for name in (1, 2)])
        eventually(lambda: made.submitted() == [[1, 2]])
        made.errands.forget("u")
        eventually(lambda: made.engine.forgotten == ["u"])
        made.engine.at_once = True
        for batch in made.engine.submitted:
            batch.finished.set()
        eventually(lambda: made.has_answered(2))
        again = [batch for batch in made.engine.submitted if batch.names == [1]]
        assert [request.session for request in again[0].requests] == [None]


def test_what_is_wrong_with_the_newest_of_a_shared_run_is_not_the_others_fault() -> None:
    refused = Engine(at_once=True, refused=3)
    with loop(engine=refused) as made:
        made.queue.add([cast(InFlight, Waiting(request_of(name), run_key="u")) for name in (1, 2, 3)])
        eventually(lambda: made.has_answered(3))
        assert made.submitted() == [[3], [2]]
        answers = {name_of(cast(RecallRequest, each.item.request)): each.answer for each in made.outcomes}
        assert isinstance(answers[3], RequestError)
        assert isinstance(answers[1], RecallResult)
        assert isinstance(answers[2], RecallResult)
        eventually(lambda: made.device.running == 0)


def test_requests_that_were_refused_teach_nothing_about_how_long_batches_take() -> None:
    with loop(engine=Engine(at_once=True, refused=1), engine_seconds=1.0) as made:
        for count in range(1, 6):
            made.add(1)
            eventually(partial(made.has_answered, count))
        assert not made.queue.costs.trusted("level")
        assert made.queue.costs.fixed("level") == 1.0


def test_a_prediction_that_was_not_tried_turns_nobody_away() -> None:
    with loop(engine_seconds=1e6) as made:
        made.queue.add([cast(InFlight, Waiting(request_of(1), deadline=time.monotonic() + 60))])
        eventually(lambda: made.submitted() == [[1]])
        made.queue.add([cast(InFlight, Waiting(request_of(2), deadline=time.monotonic() + 60))])
        assert len(made.queue) == 1
        assert made.turned_away == []
