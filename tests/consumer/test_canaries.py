import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from catalog_sync.layout import Canary
from consumer.serving.canaries import BATCH, CanaryRunner, canary_request, judge
from consumer.serving.recaller import Answer
from consumer.wire.settings import RecallDefaults, WireLimits
from engine.errors import CatalogError, RequestError
from engine.request import RecallRequest
from tests.consumer.fake_engine import result_for

DEFAULTS, LIMITS, LEVELS = RecallDefaults(), WireLimits(), 3
STOP = threading.Event()


def canary(history: Sequence[int] = (1,), **fields: Any) -> Canary:
    return Canary({"history": list(history), "top_k": 3}, **fields)


def reason_of(call: Any) -> tuple[str, str]:
    with pytest.raises(CatalogError) as caught:
        call()
    return caught.value.reason, caught.value.message


def runner(ask: Any, seconds: float = 5.0) -> CanaryRunner:
    return CanaryRunner(ask, DEFAULTS, LIMITS, LEVELS, seconds)


def at_once(requests: Sequence[RecallRequest]) -> "Future[list[Answer]]":
    done: Future[list[Answer]] = Future()
    done.set_result([result_for(request) for request in requests])
    return done


def test_a_canary_is_an_ordinary_request_pinned_to_its_version() -> None:
    request = canary_request(canary([5, 6]), DEFAULTS, LIMITS, LEVELS, "v9")
    assert (request.catalog, request.top_k, np.asarray(request.history).tolist()) == ("v9", 3, [5, 6])


@pytest.mark.parametrize("request_fields", [{}, {"history": [1], "histroy": [2]}, {"history": [1.5]}, {"top_k": 0}])
def test_what_is_no_request_is_named(request_fields: dict[str, Any]) -> None:
    call = lambda: canary_request(Canary(request_fields, name="front page"), DEFAULTS, LIMITS, LEVELS)  # noqa: E731
    reason, message = reason_of(call)
    assert reason == "canary"
    assert "front page" in message


def test_expectations_are_checked_one_by_one() -> None:
    answer = result_for(canary_request(canary([1]), DEFAULTS, LIMITS, LEVELS))  # items 2, 3, 4
    judge(canary(at_least=3, must_contain=(2, 4)), answer)
    assert reason_of(lambda: judge(canary(at_least=4), answer))[0] == "canary"
    assert "item 7" in reason_of(lambda: judge(canary(must_contain=(3, 7)), answer))[1]
    assert "bad_request: x" in reason_of(lambda: judge(canary(), RequestError("bad_request", "x")))[1]
    assert reason_of(lambda: judge(canary(), RequestError("overloaded", "x")))[0] == "busy"


def test_many_canaries_go_in_small_batches_and_all_are_judged() -> None:
    sizes: list[int] = []

    def ask(requests: Sequence[RecallRequest]) -> "Future[list[Answer]]":
        sizes.append(len(requests))
        return at_once(requests)

    runner(ask)("v1", [canary([n]) for n in range(BATCH + 1)], STOP)
    assert sizes == [BATCH, 1]
    bad = [canary([n]) for n in range(BATCH)] + [canary(must_contain=(99,), name="last")]
    assert "last" in reason_of(lambda: runner(ask)("v1", bad, STOP))[1]


def test_an_engine_that_does_not_answer_is_busy_and_the_errand_is_given_up() -> None:
    asked: list[Future[list[Answer]]] = []

    def never(_: Sequence[RecallRequest]) -> "Future[list[Answer]]":
        asked.append(Future())
        return asked[-1]

    assert reason_of(lambda: runner(never, 0.05)("v1", [canary()], STOP))[0] == "busy"
    assert asked[0].cancelled()


def test_a_stop_ends_the_wait() -> None:
    stop = threading.Event()
    stop.set()
    assert reason_of(lambda: runner(lambda _: Future(), 3600)("v1", [canary()], stop))[0] == "busy"
