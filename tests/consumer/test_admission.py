"""When reading stops, pauses and goes on."""

from hypothesis import given
from hypothesis import strategies as st

from consumer.serving.admission import READ_CHUNK, AdmissionGate, Flow
from consumer.serving.settings import BatchSettings

SETTINGS = BatchSettings(
    max_requests=1, max_in_flight=100, max_in_flight_bytes=10_000, max_span=1_000, resume_at=0.5, pause_after_s=1.0
)


def gate() -> AdmissionGate:
    return AdmissionGate(SETTINGS, record_bytes=1_000)


def test_each_bound_closes_the_gate() -> None:
    assert gate().update(99, 9_999, 999, 0.0) is Flow.READ
    assert gate().update(100, 0, 0, 0.0) is Flow.HOLD
    assert gate().update(0, 10_000, 0, 0.0) is Flow.HOLD
    assert gate().update(0, 0, 1_000, 0.0) is Flow.HOLD


def test_it_opens_only_at_the_lower_mark() -> None:
    made = gate()
    made.update(100, 0, 0, 0.0)
    assert made.update(51, 0, 0, 0.1) is Flow.HOLD
    assert made.update(50, 0, 0, 0.2) is Flow.READ
    assert made.update(99, 0, 0, 0.3) is Flow.READ


def test_a_queue_that_stays_full_pauses_after_a_while_and_reads_on_afterwards() -> None:
    made = gate()
    assert made.update(100, 0, 0, 0.0) is Flow.HOLD
    assert made.update(90, 0, 0, 0.99) is Flow.HOLD
    assert made.update(90, 0, 0, 1.0) is Flow.PAUSED
    assert made.update(50, 0, 0, 2.0) is Flow.READ
    assert made.update(100, 0, 0, 3.0) is Flow.HOLD


@given(st.integers(0, 99), st.integers(0, 9_999))
def test_what_is_read_keeps_within_the_bounds_even_if_every_record_is_of_full_size(count: int, size: int) -> None:
    room = gate().room(count, size)
    assert 1 <= room <= READ_CHUNK
    assert count + room <= 100
    assert size + room * 1_000 <= 10_000 or room == 1
