"""Which answers may leave in a transaction, and that none is ever given twice or skipped."""

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.serving.offsets import Ticket
from consumer.serving.turns import Run, Turns
from consumer.stream.partition import Partition
from tests.consumer.waiting import eventually

P, Q = Partition("t", 0), Partition("t", 1)
MEMBER = b"member"


def ticket(offset: int, partition: Partition = P, epoch: int = 1) -> Ticket:
    return Ticket(partition, offset, epoch)


def turns(*tickets: Ticket) -> Turns[str]:
    made: Turns[str] = Turns(lambda: 0.0)
    made.member(MEMBER)
    made.deliver(tickets)
    return made


def answer(made: Turns[str], ticket: Ticket, answer: str) -> bool:
    return not made.answer([(ticket, answer)])


def taken(made: Turns[str], most: int = 100) -> Run[str]:
    run = made.take(most)
    assert run is not None
    return run


def test_an_answer_waits_for_those_of_older_records_of_its_partition_only() -> None:
    made = turns(ticket(5), ticket(6), ticket(9), ticket(1, Q))
    answer(made, ticket(6), "6")
    assert made.take(100) is None
    answer(made, ticket(1, Q), "q")
    assert dict(taken(made).offsets) == {Q: 2}
    answer(made, ticket(5), "5")
    run = taken(made)
    assert [*run.answers.values()] == ["5", "6"]
    assert dict(run.offsets) == {P: 7}
    assert made.take(100) is None, "9 is not answered, the others are under way"


def test_at_most_so_many_leave_at_once_and_the_offset_says_how_far() -> None:
    made = turns(*(ticket(offset) for offset in range(5)))
    for offset in range(5):
        answer(made, ticket(offset), str(offset))
    assert dict(taken(made, 3).offsets) == {P: 3}
    assert [*taken(made, 3).answers.values()] == ["3", "4"]


def test_a_partition_with_many_answers_does_not_keep_the_others_waiting() -> None:
    made = turns(*(ticket(offset) for offset in range(4)), ticket(0, Q))
    for each in (*(ticket(offset) for offset in range(4)), ticket(0, Q)):
        answer(made, each, str(each.offset))
    first = taken(made, 1)
    made.end(first, committed=False)
    second = taken(made, 1)
    made.end(second, committed=True)
    third = taken(made, 1)
    assert [dict(run.offsets) for run in (first, second, third)] == [{P: 1}, {Q: 1}, {P: 1}]


def test_aborted_answers_are_first_in_the_next_transaction() -> None:
    made = turns(ticket(1), ticket(2))
    answer(made, ticket(1), "1")
    run = taken(made)
    answer(made, ticket(2), "2")
    assert made.end(run, committed=False) == []
    assert [*taken(made).answers.values()] == ["1", "2"]


def test_nothing_leaves_without_a_membership_and_it_is_the_one_of_that_moment() -> None:
    made = turns(ticket(1))
    answer(made, ticket(1), "1")
    made.member(None)
    assert made.take(100) is None
    made.member(b"newer")
    assert taken(made).membership == b"newer"


def test_answers_of_a_partition_that_is_withdrawn_never_leave() -> None:
    made = turns(ticket(1), ticket(2), ticket(1, Q))
    answer(made, ticket(1), "1")
    assert made.withdraw([P], 0.0) == ["1"]
    assert not answer(made, ticket(2), "2")
    assert made.take(100) is None
    answer(made, ticket(1, Q), "q")
    assert dict(taken(made).offsets) == {Q: 2}


def test_an_answer_of_an_earlier_ownership_is_not_this_ones() -> None:
    made = turns(ticket(1))
    made.withdraw([P], 0.0)
    made.deliver([ticket(1, epoch=2)])
    assert not answer(made, ticket(1, epoch=1), "old")
    assert answer(made, ticket(1, epoch=2), "new")
    assert [*taken(made).answers.values()] == ["new"]


def test_an_open_transaction_of_a_withdrawn_partition_is_no_longer_owned_and_its_others_go_on() -> None:
    made = turns(ticket(1), ticket(4, Q))
    answer(made, ticket(1), "p")
    answer(made, ticket(4, Q), "q")
    run = taken(made)
    assert made.owned(run)
    assert made.withdraw([P], 0.0) == [], "what is under way is given back by end"
    assert not made.owned(run)
    assert made.end(run, committed=False) == ["p"]
    assert [*taken(made).answers.values()] == ["q"]


def test_a_partition_that_came_back_does_not_own_the_transaction_of_its_past() -> None:
    made = turns(ticket(1))
    answer(made, ticket(1), "p")
    run = taken(made)
    made.withdraw([P], 0.0)
    made.deliver([ticket(1, epoch=2)])
    assert not made.owned(run)
    assert made.end(run, committed=True) == []
    assert made.committed() == {}, "the offset is of an ownership that is over"


def test_withdrawing_waits_for_the_open_transaction_of_these_partitions() -> None:
    made = turns(ticket(1), ticket(1, Q))
    answer(made, ticket(1), "p")
    run = taken(made)
    assert made.withdraw([Q], 60.0) == [], "it holds nothing of that one"
    done: list[object] = []
    waiting = threading.Thread(target=lambda: done.append(made.withdraw([P], 60.0)))
    waiting.start()
    eventually(lambda: not made.owned(run))
    assert done == []
    made.end(run, committed=True)
    waiting.join(20)
    assert done == [[]]


def test_a_chosen_start_is_committed_once_and_again_after_an_abort() -> None:
    made = turns()
    made.start(P, 1, 40)
    run = taken(made)
    assert (dict(run.offsets), dict(run.answers)) == ({P: 40}, {})
    made.end(run, committed=False)
    made.end(taken(made), committed=True)
    assert made.committed() == {P: 40}
    assert made.committed() == {}
    assert made.take(100) is None


def test_it_says_how_long_a_transaction_has_been_open() -> None:
    now = [10.0]
    made: Turns[str] = Turns(lambda: now[0])
    made.member(MEMBER)
    made.deliver([ticket(1)])
    answer(made, ticket(1), "1")
    assert made.open_s() == 0
    run = taken(made)
    now[0] = 12.5
    assert made.open_s() == 2.5
    made.end(run, committed=True)
    assert made.open_s() == 0


STEPS = st.lists(
    st.tuples(st.sampled_from(["deliver", "answer", "commit", "abort", "move"]), st.integers(0, 1), st.integers(0, 50)),
    max_size=120,
)


@settings(max_examples=200)
@given(STEPS)
def test_whatever_happens_each_offset_is_answered_once_up_to_what_is_committed(
    steps: list[tuple[str, int, int]],
) -> None:
    """A next owner reads on from the committed offset: the answers below it, and only they, may have been given."""
    made: Turns[str] = turns()
    committed = {P: 0, Q: 0}
    position = {P: 0, Q: 0}
    epoch = {P: 1, Q: 1}
    open_tickets: list[Ticket] = []
    given_answers: list[tuple[Partition, int]] = []
    for kind, number, choice in steps:
        partition = (P, Q)[number]
        if kind == "deliver":
            position[partition] += 3  # the log has holes: it holds 2, 5, 8, …
            each = Ticket(partition, position[partition] - 1, epoch[partition])
            made.deliver([each])
            open_tickets.append(each)
        elif kind == "answer" and open_tickets:
            each = open_tickets.pop(choice % len(open_tickets))
            assert answer(made, each, "a") == (each.epoch == epoch[each.partition])
        elif kind == "move":
            made.withdraw([partition], 0.0)
            epoch[partition] += 1
            position[partition] = committed[partition]
        elif kind in ("commit", "abort") and (run := made.take(1 + choice % 4)):
            if kind == "commit":
                committed |= run.offsets
                given_answers += [(each.partition, each.offset) for each in run.answers]
            made.end(run, committed=kind == "commit")
    assert sorted(given_answers) == [(each, offset) for each in (P, Q) for offset in range(2, committed[each], 3)]
