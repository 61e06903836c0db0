"""The checker sees every breach of the contract, and only those."""

import struct

from tests.kafka.checker import Answer, judge
from tests.kafka.commit_log import Commit, decreases, parse_commit
from tests.kafka.silence import longest_silences

GOOD = [Answer((0, 0), 10, "reply"), Answer((0, 1), 12, "dead letter"), Answer((1, 0), 11, "reply")]


def commit(partition: int, offset: int, at_ms: int) -> Commit:
    return Commit("requests", partition, offset, at_ms)


def test_a_good_run_is_kept() -> None:
    verdict = judge({0: 2, 1: 1}, GOOD, [commit(0, 1, 10), commit(1, 1, 20), commit(0, 2, 21), commit(0, 2, 22)])
    assert verdict.kept
    assert (verdict.requests, verdict.uncommitted, verdict.repeated) == (3, 0, 0)


def test_a_request_without_an_answer_is_found() -> None:
    verdict = judge({0: 3, 1: 1}, GOOD, [])
    assert not verdict.kept
    assert verdict.unanswered == ((0, 2),)
    assert verdict.uncommitted == 4


def test_a_commit_before_the_answer_is_found_even_if_the_answer_comes() -> None:
    verdict = judge({0: 2, 1: 1}, GOOD, [commit(0, 2, 11)])
    assert not verdict.kept
    assert verdict.early == ((0, 1),)
    assert verdict.unanswered == ()


def test_a_commit_of_what_is_never_answered_is_found() -> None:
    assert judge({0: 3, 1: 1}, GOOD, [commit(0, 3, 99)]).early == ((0, 2),)


def test_the_first_of_several_answers_counts_and_repeats_are_counted() -> None:
    verdict = judge({0: 2, 1: 1}, [Answer((0, 0), 50, "reply"), *GOOD], [commit(0, 1, 11)])
    assert verdict.kept
    assert verdict.repeated == 1


def test_a_request_with_two_answers_is_not_exactly_once() -> None:
    again = Answer((0, 1), 60, "reply")
    verdict = judge({0: 2, 1: 1}, [*GOOD, again], [])
    assert verdict.kept
    assert not verdict.exact
    assert verdict.doubled == ((0, 1),)
    assert judge({0: 2, 1: 1}, GOOD, [commit(0, 2, 1)], atomic=True).exact, "it came true with its answers"
    assert not judge({0: 3, 1: 1}, GOOD, [], atomic=True).exact
    assert judge({0: 3, 1: 1}, GOOD, [commit(0, 3, 1)], atomic=True).early == ((0, 2),)
    assert not judge({0: 2, 1: 1}, GOOD, [commit(0, 2, 20), commit(0, 1, 30)]).exact


def test_a_commit_that_falls_is_found_for_each_partition_alone() -> None:
    fallen = commit(0, 1, 40)
    log = [commit(0, 2, 20), commit(1, 1, 30), fallen, commit(0, 2, 50)]
    assert decreases(log) == [fallen]
    assert judge({0: 2, 1: 1}, GOOD, log).backwards == (fallen,)


def test_a_record_of_the_commit_log_is_read() -> None:
    key = struct.pack(">hh5sh8si", 1, 5, b"group", 8, b"requests", 3)
    value = struct.pack(">hqi", 3, 77, -1)
    assert parse_commit(key, value, 9) == ("group", Commit("requests", 3, 77, 9))
    assert parse_commit(key, None, 9) is None, "a tombstone"
    assert parse_commit(struct.pack(">hh5s", 2, 5, b"group"), b"member", 9) is None, "the group's own record"


def test_a_silence_is_the_longest_time_between_two_answers_of_a_partition() -> None:
    answers = [
        Answer((partition, 0), at_ms, "reply") for partition, at_ms in ((0, 900), (0, 0), (1, 5), (0, 100), (1, 7))
    ]
    assert longest_silences(answers) == {0: 0.8, 1: 0.002}
