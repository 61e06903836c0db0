"""Users who were forgotten a while ago."""

import pytest

from consumer.serving import forgotten
from consumer.serving.forgotten import Forgotten


def test_what_was_read_before_its_user_was_forgotten_is_covered_and_nothing_else() -> None:
    known = Forgotten()
    known.add("u", 100.0)
    assert [known.covers("u", 99.0), known.covers("u", 101.0), known.covers("w", 99.0)] == [True, False, False]
    known.add("u", 200.0)
    assert known.covers("u", 150.0)


def test_it_is_kept_for_as_long_as_answers_may_come() -> None:
    known = Forgotten()
    known.add("u", 0.0)
    known.add("w", 599.0)
    assert len(known) == 2
    known.add("x", 600.0)
    assert len(known) == 2
    assert not known.covers("u", -1.0)


def test_many_who_are_forgotten_at_once_take_bounded_memory_and_none_of_them_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forgotten, "_MOST", 10)
    known = Forgotten()
    for number in range(100):
        known.add(f"u{number}", float(number))
    assert len(known) == 10
    assert all(known.covers(f"u{number}", number - 0.5) for number in range(100))
    assert not known.covers("u99", 99.5)
    assert not known.covers("nobody", 89.5), "read after all that are no longer known were forgotten"
