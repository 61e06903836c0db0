"""The engine equals the oracle on random catalogs, models and requests, whatever shares the batch."""

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.pairing import Pairing, check
from tests.engine.strategies import Case, cases

TIMES = int(os.environ.get("ORACLE_TIMES", "1"))
"""Multiplies the number of examples; a long run is ORACLE_TIMES=50."""


def examples(count: int) -> settings:
    too_slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count * TIMES, deadline=None, suppress_health_check=too_slow)


@examples(300)
@given(case=cases())
def test_a_batch_equals_the_oracle(pairing: Pairing, case: Case) -> None:
    pairing.compare(case.model, case.items, case.requests)


@examples(40)
@given(case=cases(least=2, most=16), data=st.data())
def test_a_request_has_one_answer_alone_and_in_any_batch(pairing: Pairing, case: Case, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(case.requests))))
    shuffled = [case.requests[place] for place in order]
    with pairing.serving(case.model, case.items) as engine:
        alone = [engine.recall([request])[0] for request in case.requests]
        check(engine, case.items, case.requests, alone)
        check(engine, case.items, case.requests, engine.recall(case.requests))
        check(engine, case.items, shuffled, engine.recall(shuffled))
