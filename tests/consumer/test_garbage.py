"""The garbage collector of a warm process: what is there is left alone, what comes is looked at rarely."""

import gc
from collections.abc import Iterator

import pytest

from consumer.service import garbage


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_lives_after_the_warm_up_is_frozen_and_requests_are_collected_rarely() -> None:
    older = gc.get_threshold()[1:]
    garbage.settle()
    assert gc.get_freeze_count() > 1_000
    assert gc.get_threshold() == (garbage.YOUNG, *older)
