"""Which offsets may be committed, whatever the order of completion, the holes in the log and the rebalances."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from consumer.serving.offsets import OffsetTracker, Ownership
from consumer.stream.partition import Partition

P = Partition("t", 0)
Q = Partition("t", 1)


def owned(*partitions: Partition, start: int | None = 0) -> OffsetTracker:
    tracker = OffsetTracker()
    tracker.assign(dict.fromkeys(partitions or (P,), start))
    return tracker


@dataclass(frozen=True, eq=False)
class Record:
    """One that was delivered."""

    ownership: Ownership
    offset: int

    def finish(self) -> bool:
        return self.ownership.finish(self.offset)


def delivered(tracker: OffsetTracker, offset: int, partition: Partition = P, at: float = 0.0) -> Record | None:
    ownership = tracker.ownership(partition)
    return Record(ownership, offset) if ownership and ownership.deliver(offset, round(at * 1000)) else None


def deliver(tracker: OffsetTracker, offset: int, partition: Partition = P, at: float = 0.0) -> Record:
    record = delivered(tracker, offset, partition, at)
    assert record is not None
    return record


def next_commit(tracker: OffsetTracker, partition: Partition = P) -> int | None:
    return dict(tracker.committable()).get(partition)


@st.composite
def holes_and_order(draw: st.DrawFn) -> tuple[int, list[int], list[int]]:
    """A start, ascending delivered offsets with holes, and an order in which they are completed."""
    start = draw(st.integers(0, 1_000))
    gaps = draw(st.lists(st.integers(0, 20), min_size=1, max_size=40))
    offsets, at = [], start
    for gap in gaps:
        at += gap
        offsets.append(at)
        at += 1
    return start, offsets, draw(st.permutations(offsets))


@given(holes_and_order(), st.data())
def test_never_past_the_first_unfinished_and_after_the_last_when_all_is_done(
    case: tuple[int, list[int], list[int]], data: st.DataObject
) -> None:
    start, offsets, order = case
    tracker = owned(start=start)
    records: dict[int, Record] = {}
    delivered, completed, last = 0, set[int](), start
    for offset in order:
        while offset not in records or (delivered < len(offsets) and data.draw(st.booleans())):
            records[offsets[delivered]] = deliver(tracker, offsets[delivered])
            delivered += 1
        assert records[offset].finish()
        completed.add(offset)
        unfinished = [each for each in offsets if each not in completed]
        for partition, committable in list(tracker.committable()):
            assert committable > last, "a commit never goes back"
            assert all(committable <= each for each in unfinished if each in records)
            tracker.stored(partition, committable)
            last = committable
        finished_head = [each for each in offsets if all(other in completed for other in offsets if other <= each)]
        if finished_head:
            assert last > finished_head[-1], "what is finished is committed at once"
    assert last == offsets[-1] + 1
    assert tracker.span() == 0
    assert tracker.unfinished([P]) == 0


def test_nothing_is_committable_before_anything_is_finished() -> None:
    tracker = owned(start=10)
    deliver(tracker, 10)
    assert next_commit(tracker) is None


def test_a_hole_in_the_log_does_not_hold_the_commit_back() -> None:
    tracker = owned(start=0)
    first, second = deliver(tracker, 3), deliver(tracker, 900)
    second.finish()
    assert next_commit(tracker) == 3
    first.finish()
    assert next_commit(tracker) == 901


def test_a_record_that_is_delivered_twice_is_tracked_once() -> None:
    tracker = owned()
    record = deliver(tracker, 0)
    assert delivered(tracker, 0) is None
    record.finish()
    assert delivered(tracker, 0) is None
    assert next_commit(tracker) == 1


def test_completing_twice_changes_nothing() -> None:
    tracker = owned()
    first, _second = deliver(tracker, 0), deliver(tracker, 1)
    assert first.finish()
    assert not first.finish()
    assert tracker.unfinished([P]) == 1
    assert next_commit(tracker) == 1


def test_a_partition_that_is_not_owned_delivers_nothing() -> None:
    assert delivered(owned(P), 0, Q) is None


@given(st.lists(st.sampled_from(["deliver", "complete", "drop", "assign"]), max_size=60), st.randoms())
def test_a_lost_ownership_never_moves_an_offset(steps: list[str], random: object) -> None:
    """Offsets only move through records of the current epoch, whatever late results arrive."""
    tracker = OffsetTracker()
    held: list[Record] = []
    current: list[Record] = []
    position = 0
    for step in steps:
        if step == "assign":
            position = min((record.offset for record in held), default=position)  # what was unfinished comes again
            tracker.assign({P: position})
            current = []
        elif step == "drop":
            tracker.drop([P])
            current = []
        elif step == "deliver" and (record := delivered(tracker, position)):
            held.append(record)
            current.append(record)
            position += 1
        elif step == "complete" and held:
            record = held.pop(random.randrange(len(held)))  # type: ignore[attr-defined]  # hypothesis's random.Random
            before = dict(tracker.committable())
            assert record.finish() == (record in current)
            if record in current:
                current.remove(record)
            else:
                assert dict(tracker.committable()) == before
        for _, offset in list(tracker.committable()):
            assert all(offset <= record.offset for record in current)


def test_a_late_record_does_not_finish_the_same_offset_under_a_new_ownership() -> None:
    tracker = owned(start=0)
    late = deliver(tracker, 0)
    tracker.drop([P])
    tracker.assign({P: 0})
    again = deliver(tracker, 0)
    assert not late.finish()
    assert next_commit(tracker) is None
    assert again.finish()
    assert next_commit(tracker) == 1


def test_partitions_advance_apart() -> None:
    tracker = owned(P, Q)
    on_p, on_q = deliver(tracker, 0, P), deliver(tracker, 0, Q)
    on_q.finish()
    assert dict(tracker.committable()) == {Q: 1}
    tracker.drop([Q])
    on_p.finish()
    assert dict(tracker.committable()) == {P: 1}


def test_a_start_that_was_chosen_is_committed_and_one_that_was_committed_is_not() -> None:
    tracker = owned(start=7)
    assert next_commit(tracker) is None
    assert tracker.uncommitted() == {}
    tracker.reset(P)
    assert next_commit(tracker) == 7


def test_an_unknown_start_takes_the_first_record_for_committed() -> None:
    tracker = owned(start=None)
    record = deliver(tracker, 5)
    assert next_commit(tracker) is None
    record.finish()
    assert next_commit(tracker) == 6


def test_a_commit_stays_due_until_the_broker_confirms_it() -> None:
    tracker = owned()
    deliver(tracker, 0).finish()
    tracker.stored(P, 1)
    assert tracker.uncommitted() == {P: 1}
    tracker.committed(P, 1)
    assert tracker.uncommitted() == {}
    assert tracker.progress(P).committed == 1


def test_an_older_commit_that_is_confirmed_late_does_not_set_the_mark_back() -> None:
    tracker = owned()
    for offset in range(3):
        deliver(tracker, offset).finish()
    tracker.stored(P, 3)
    tracker.committed(P, 3)
    tracker.committed(P, 1)
    assert tracker.progress(P).committed == 3


def test_the_span_counts_finished_offsets_behind_an_unfinished_one() -> None:
    tracker = owned()
    records = [deliver(tracker, offset) for offset in range(5)]
    for record in records[1:]:
        record.finish()
    assert tracker.span() == 5
    records[0].finish()
    assert tracker.span() == 0


def test_progress_shows_the_age_of_the_oldest_unfinished_record() -> None:
    tracker = owned()
    first = deliver(tracker, 0, at=100.0)
    deliver(tracker, 1, at=200.0)
    assert tracker.progress(P).oldest == 100.0
    first.finish()
    assert tracker.progress(P).oldest == 200.0
    assert tracker.progress(P).watermark == 1
