"""An interrupt while a process of the demo is being started: it waits, and the process is taken down."""

import signal
from collections.abc import Iterator

import pytest

from consumer.demo.run import interrupts_held


@pytest.fixture(autouse=True)
def sigterm_as_in_the_demo() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_for_the_end_of_the_block(number: signal.Signals) -> None:
    reached = []

    def interrupted() -> None:
        with interrupts_held():
            signal.raise_signal(number)
            reached.append("end")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached == ["end"]
    with pytest.raises(KeyboardInterrupt):  # the handlers are those of before
        signal.raise_signal(number)


def test_an_error_in_the_block_passes_and_the_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="broken"), interrupts_held():
        raise ValueError("broken")
    assert signal.getsignal(signal.SIGINT) is before
