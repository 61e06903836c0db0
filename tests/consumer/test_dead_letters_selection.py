"""Which dead letters a selection means."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.dead_letters.selection import Places, Selection, parse_places, parse_time
from consumer.wire.dead_letter import SourceRecord
from consumer.wire.stored_letter import StoredLetter

small = st.integers(0, 30)
NOW = 1_800_000_000_000.0


def letter(partition: int = 0, offset: int = 0, when: int = 5, **headers: str) -> StoredLetter:
    names = {"error_class": "dlq.error.class", "stage": "dlq.error.stage", "topic": "dlq.original.topic"}
    numbers = [(f"dlq.original.{name}", b"1") for name in ("partition", "offset", "timestamp")]
    given_headers = [(names[name], content.encode()) for name, content in headers.items()]
    return StoredLetter.of(SourceRecord("dead", partition, offset, when, None, b"", [*numbers, *given_headers]))


def test_places_are_offsets_and_ranges_of_partitions() -> None:
    assert parse_places("0:17, 1:20-40,5") == (Places(0, 17, 17), Places(1, 20, 40), Places(0, 5, 5))


@pytest.mark.parametrize("text", ["", "x", "1:", ":1", "1:2:3", "-1", "1-", "1,,2", "9" * 40])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no place"):
        parse_places(text)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("90s", NOW - 90_000),
        ("15m", NOW - 900_000),
        ("2h", NOW - 7_200_000),
        ("7d", NOW - 604_800_000),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC).timestamp() * 1000),
        ("2026-01-31T08:00", datetime(2026, 1, 31, 8, tzinfo=UTC).timestamp() * 1000),
        ("2026-01-31T08:00+02:00", datetime(2026, 1, 31, 6, tzinfo=UTC).timestamp() * 1000),
    ],
)
def test_times_are_ages_or_moments(text: str, at_ms: float) -> None:
    assert parse_time(text, NOW) == at_ms


def test_all_that_is_given_must_hold() -> None:
    found = letter(error_class="internal", stage="recall", topic="t")
    for selection in (
        Selection(),
        Selection(error_class="internal", stage="recall", topic="t", since_ms=5, until_ms=6),
    ):
        assert selection.matches(found)
    for selection in (
        Selection(error_class="bad_request"),
        Selection(stage="decode"),
        Selection(topic="u"),
        Selection(since_ms=6),
        Selection(until_ms=5),
        Selection(places=parse_places("0:1")),
    ):
        assert not selection.matches(found)
    assert not Selection(topic="t").matches(letter())


@given(st.lists(st.tuples(st.integers(0, 2), small, small), min_size=1, max_size=5), st.integers(0, 2), small)
def test_what_is_read_covers_what_is_meant(ranges: list[tuple[int, int, int]], partition: int, offset: int) -> None:
    selection = Selection(tuple(Places(*each) for each in ranges))
    within = selection.within()
    assert within is not None
    meant = any(p == partition and first <= offset <= last for p, first, last in ranges)
    assert selection.matches(letter(partition, offset)) == meant
    if meant:
        first, end = within[partition]
        assert first <= offset < end
