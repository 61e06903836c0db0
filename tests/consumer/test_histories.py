"""Held histories without a broker: a history held through events is the same one sent whole, whatever happens to it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from consumer.histories.history import Change, History
from consumer.histories.items import Cap, PackedItems
from consumer.histories.keeper import Keeper
from consumer.histories.operation import Effects, Operation, Stored, UserKey, Write
from consumer.histories.settings import HistorySettings
from consumer.histories.unsaved import MAX_CHUNKS
from consumer.stream.partition import Partition
from engine.errors import RequestError
from engine.request import ItemIds

CAP = Cap(6, 3)
HERE = Partition("t", 0)
USER = UserKey("t", "u")


@dataclass
class FakeStore:
    """What Redis does, in a dict."""

    hashes: dict[UserKey, dict[str, bytes]] = field(default_factory=dict)

    def write(self, write: Write) -> bool:
        found = self.hashes.get(write.user, {})
        if found.get("head", b"") != write.expected:
            return False
        chunks = {} if write.whole else found
        self.hashes[write.user] = {**chunks, "head": write.head, str(write.index): write.packed}
        return True

    def read(self, user: UserKey) -> Stored:
        found = dict(self.hashes.get(user, {}))
        head = found.pop("head", b"")
        if not head:
            return Stored(History(), b"", 0, 0)
        history, count = History.parse(head, b"".join(found[str(each)] for each in range(len(found))), CAP)
        return Stored(history, head, len(found), count)


@dataclass
class Member:
    """A keeper, its store and its clock; ``told`` and ``released`` by offset."""

    store: FakeStore = field(default_factory=FakeStore)
    mode: str = "write-through"
    more: dict[str, int] = field(default_factory=dict)
    now: float = 0.0
    epoch: int = 1

    def __post_init__(self) -> None:
        chosen = HistorySettings.model_validate({"store": self.mode, **self.more})
        self.keeper: Keeper[tuple[int, int]] = Keeper(chosen, CAP, lambda: self.now)
        self.told: dict[int, ItemIds | RequestError | None] = {}
        self.released: list[int] = []
        self._seen: set[tuple[str, int, int]] = set()

    def submit(
        self, offset: int, change: Change | None, items: Iterable[int] | list[str] = (), user: UserKey = USER
    ) -> None:
        ids = items if items and isinstance(items, list) and isinstance(items[0], str) else np.array(list(items), int)
        waits = change in (None, "extend")
        self.take(
            self.keeper.submit(
                Operation((self.epoch, offset), user, HERE, self.epoch, offset, change, self.now, ids, waits)
            )
        )

    def settle(self, *, writes: bool = True) -> None:
        """Turns of the store until nothing is due."""
        for _ in range(20):
            due = self.keeper.take_writes(100, at_once=True) if writes else []
            users = self.keeper.take_loads(100)
            if not due and not users:
                return
            for write in due:
                self.take(self.keeper.written(write, done=self.store.write(write)))
            for user in users:
                self.take(self.keeper.loaded(user, self.store.read(user)))
        raise AssertionError("the keeper and its store never agree")

    def held(self, user: UserKey = USER) -> list[int | str] | None:
        """What a request of the user sees now."""
        self.submit(10_000, None, user=user)
        self.settle()
        came = self.told.pop(10_000)
        return None if isinstance(came, RequestError) or came is None else list(came)

    def take(self, effects: Effects[tuple[int, int]]) -> None:
        for each in effects.told:
            self._once("told", each.tag)
            if each.tag[0] == self.epoch:
                self.told[each.tag[1]] = each.came
        for tag in effects.released:
            self._once("released", tag)
            if tag[0] == self.epoch:
                self.released.append(tag[1])

    def _once(self, what: str, tag: tuple[int, int]) -> None:
        assert (what, *tag) not in self._seen or tag[1] == 10_000, f"{tag} {what} twice"
        self._seen.add((what, *tag))


def test_a_cut_leaves_what_the_prompt_of_the_whole_history_holds() -> None:
    def used(count: int) -> int:  # engine/runtime/prompts.py
        excess = count - CAP.most
        return count if excess <= 0 else count - -(-excess // CAP.drop) * CAP.drop

    for step in (1, 2, 5, 50):
        held = PackedItems()
        for end in range(step, 200, step):
            held.append(np.arange(end - step, end), CAP)
            assert used(len(held)) == used(end)
            assert (used(len(held)) < len(held)) == (used(end) < end), "and it knows that there was more"
            assert len(held) <= CAP.most + CAP.drop
            assert list(held.items())[-used(end) :] == list(range(end))[-used(end) :]


def test_string_ids_are_held_and_cut_too() -> None:
    held = PackedItems()
    for number in range(50):
        held.append([f"item-\N{SNOWMAN}\0{number}"], CAP)
    names = [f"item-\N{SNOWMAN}\0{number}" for number in range(50)]
    assert held.items() == names[-len(held) :]
    assert not held.takes(np.array([1]))


@pytest.mark.parametrize("mode", ["off", "write-behind", "write-through"])
def test_a_request_sees_exactly_the_events_before_it(mode: str) -> None:
    member = Member(mode=mode)
    member.submit(0, None)
    member.submit(1, "append", [1, 2])
    member.submit(2, None)
    member.submit(3, "append", [3])
    member.submit(4, "extend", [4])
    member.submit(5, "set", [9])
    member.submit(6, None)
    member.settle()
    assert isinstance(member.told[0], RequestError)
    assert member.told[0].code == "need_history"
    assert [list(member.told[each]) for each in (2, 4, 6)] == [[1, 2], [1, 2, 3, 4], [9]]  # type: ignore[arg-type]


def test_write_through_releases_an_event_only_when_the_store_has_it() -> None:
    member = Member()
    member.submit(0, "append", [1])
    assert member.released == []
    for user in member.keeper.take_loads(10):
        member.take(member.keeper.loaded(user, member.store.read(user)))
    assert (member.released, member.keeper.unsaved) == ([], 1)
    member.settle()
    assert (member.released, member.keeper.unsaved) == ([0], 0)


def test_write_behind_risks_a_bounded_number_of_records() -> None:
    member = Member(mode="write-behind", more={"unsaved_records": 3})
    for offset in range(5):
        member.submit(offset, "append", [offset])
    member.settle(writes=False)
    assert (member.released, member.keeper.at_risk) == ([0, 1, 2], 3)
    member.submit(5, "forget")
    assert 5 not in member.released, "a user who was told to be forgotten must be"
    member.settle()
    assert (member.released, member.keeper.at_risk) == ([0, 1, 2, 3, 4, 5], 0)


def test_what_write_behind_risks_is_bounded_by_memory_too() -> None:
    member = Member(mode="write-behind", more={"max_bytes": 300_000})
    for offset in range(9):
        operation = Operation((1, offset), UserKey("t", f"u{offset}"), HERE, 1, offset, "append", 0.0, np.arange(1_000))
        operation.size = 58_000
        member.take(member.keeper.submit(operation))
    assert member.keeper.take_loads(10)
    member.take(member.keeper.failed())
    assert member.released == list(range(4)), "60 kB each: a record, its ids, its user"
    assert member.keeper.nbytes <= 300_000
    member.settle()
    assert (sorted(member.released), member.keeper.at_risk) == (list(range(9)), 0)
    assert member.keeper.nbytes < 50_000, "the records have gone, the histories are short"


@pytest.mark.parametrize("mode", ["off", "write-through", "write-behind"])
def test_users_of_whom_nothing_is_known_drive_nobody_out(mode: str) -> None:
    member = Member(mode=mode, more={"entries": 3})
    for number in range(3):
        member.submit(number, "append", [number], UserKey("t", f"known-{number}"))
    member.settle()
    for number in range(3, 103):
        change: Change | None = "extend" if number % 2 else None
        member.submit(number, change, [1] if change else [], UserKey("t", f"unknown-{number}"))
        member.settle()
        assert isinstance(member.told[number], RequestError)
    assert (len(member.keeper), member.keeper.counts.evicted) == (3, 0)
    member.submit(103, None, user=UserKey("t", "known-0"))
    assert isinstance(member.told[103], np.ndarray)
    assert member.told[103].tolist() == [0]


def test_the_memory_of_a_long_user_id_counts() -> None:
    member = Member(mode="off")
    member.submit(0, "append", [1])
    short = member.keeper.nbytes
    member.submit(1, "append", [1], UserKey("t", "\N{SNOWMAN}" * 256))
    assert member.keeper.nbytes - short > short + 500


def test_write_behind_lets_events_pass_while_the_store_is_away_and_makes_up_for_it() -> None:
    member = Member(mode="write-behind")
    member.store.hashes.clear()
    member.submit(0, "append", [1])
    member.submit(1, None)
    assert member.keeper.take_loads(10) == [USER]
    member.take(member.keeper.failed())
    assert member.released == [0]
    assert 1 not in member.told
    member.take(member.keeper.give_up(member.now))
    assert isinstance(member.told[1], RequestError)
    member.submit(2, "append", [2])
    member.settle()
    assert (member.held(), member.keeper.at_risk) == ([1, 2], 0)


def test_a_store_that_was_emptied_is_filled_again_from_what_is_held() -> None:
    member = Member()
    member.submit(0, "append", [1, 2])
    member.settle()
    member.store.hashes.clear()
    member.submit(1, "append", [3])
    member.settle()
    assert 1 in member.released
    assert Member(member.store).held() == [1, 2, 3]


def test_a_late_write_of_a_former_owner_neither_replaces_nor_doubles_anything() -> None:
    store = FakeStore()
    zombie, owner = Member(store), Member(store)
    zombie.submit(0, "append", [1])
    zombie.settle()
    zombie.submit(1, "append", [2])  # not saved when the partition moves
    owner.submit(1, "append", [2])
    owner.submit(2, "append", [3])
    owner.settle()
    zombie.keeper.drop([HERE])
    zombie.settle()
    assert zombie.keeper.counts.conflicts == 1
    assert (Member(store).held(), len(zombie.keeper)) == ([1, 2, 3], 0)
    # the other way round: the late write comes first, and the new owner takes it in
    zombie, owner = Member(store), Member(store)
    assert owner.held() == zombie.held() == [1, 2, 3]
    zombie.submit(3, "append", [4])
    owner.submit(3, "append", [4])
    owner.submit(4, "append", [5])
    zombie.settle()
    owner.settle()
    assert (Member(store).held(), owner.released[-2:]) == ([1, 2, 3, 4, 5], [3, 4])


def test_what_was_held_before_a_partition_moved_is_not_trusted_when_it_comes_back() -> None:
    store = FakeStore()
    first, second = Member(store), Member(store)
    first.submit(0, "append", [1])
    first.settle()
    first.keeper.drop([HERE])
    second.submit(1, "append", [2])
    second.settle()
    first.epoch = 2
    assert first.held() == [1, 2]


def test_a_forgotten_user_stays_forgotten_when_older_events_come_again() -> None:
    store = FakeStore()
    member = Member(store)
    member.submit(0, "append", [1])
    member.submit(1, "forget")
    member.settle()
    assert [key for key in store.hashes[USER] if key != "head" and store.hashes[USER][key]] == []
    for later in (member, Member(store)):
        later.submit(0, "append", [1]) if later is not member else None
        later.submit(1, "forget") if later is not member else None
        later.settle()
        assert later.held() is None
    member.submit(2, "append", [7])
    member.settle()
    assert Member(store).held() == [7]


def test_other_ids_than_those_held_are_refused_and_change_nothing() -> None:
    member = Member()
    member.submit(0, "append", [1])
    member.submit(1, "append", ["a"])
    member.settle()
    assert isinstance(member.told[1], RequestError)
    assert (member.told[1].code, member.held(), sorted(member.released)[:2]) == ("bad_request", [1], [0, 1])


def test_memory_is_bounded_by_users_and_by_bytes_and_the_last_used_stay() -> None:
    for more in ({"entries": 10}, {"max_bytes": 12_000}):
        member = Member(mode="off", more=more)
        for offset in range(200):
            member.submit(offset, "append", [offset], UserKey("t", str(offset)))
        assert 8 <= len(member.keeper) <= 11
        assert member.held(UserKey("t", "199")) == [199]
        assert member.keeper.counts.evicted >= 189
    member = Member(more={"entries": 10})
    for offset in range(50):
        member.submit(offset, "append", [offset], UserKey("t", str(offset)))
        member.settle()
    assert len(member.keeper) <= 11
    assert member.held(UserKey("t", "3")) == [3], "from the store"


def test_single_events_are_stored_as_what_they_add_and_now_and_then_whole() -> None:
    member = Member()
    sizes: list[int] = []
    for offset in range(3 * MAX_CHUNKS):
        member.submit(offset, "append", [offset])
        member.settle()
        sizes.append(len(member.store.hashes[USER]) - 1)
    assert max(sizes) <= MAX_CHUNKS
    assert sizes.count(1) == 3
    assert Member(member.store).held() == member.held()


CHANGES: st.SearchStrategy[tuple[str, list[int]]] = st.one_of(
    st.tuples(st.just("append"), st.lists(st.integers(0, 99), max_size=8)),
    st.tuples(st.just("set"), st.lists(st.integers(0, 99), max_size=20)),
    st.tuples(st.just("forget"), st.just([])),
    st.tuples(st.just("read"), st.just([])),
    st.tuples(st.just("extend"), st.lists(st.integers(0, 99), min_size=1, max_size=3)),
)
ACTIONS: st.SearchStrategy[tuple[str, int, int]] = st.one_of(
    st.tuples(st.just("deliver"), st.integers(0, 1), st.integers(1, 4)),
    st.tuples(st.just("store"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("fail"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("move"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("restart"), st.integers(0, 1), st.just(0)),
)


def expected(log: list[tuple[str, list[int]]]) -> list[list[int] | None]:
    """The whole history after each record, none where there is none."""
    now: list[int] | None = None
    after: list[list[int] | None] = []
    for kind, items in log:
        if kind == "set":
            now = items
        elif kind == "forget":
            now = None
        elif kind == "append" or (kind == "extend" and now is not None):
            now = [*(now or []), *items]
        after.append(now)
    return after


def newest(history: list[int] | None) -> list[int] | None:
    """As a prompt cuts it."""
    if history is None:
        return None
    excess = len(history) - CAP.most
    return history if excess <= 0 else history[-(-excess // CAP.drop) * CAP.drop :]


@settings(max_examples=300, deadline=None)
@given(st.lists(CHANGES, min_size=1, max_size=25), st.lists(ACTIONS, max_size=60))
@example(
    [("append", []), ("read", []), ("forget", [])],
    [("deliver", 0, 3), ("move", 0, 0), ("move", 0, 0)],
)
def test_a_history_held_through_events_is_the_one_sent_whole(
    log: list[tuple[str, list[int]]], actions: list[tuple[str, int, int]]
) -> None:
    """Two members, of which only one owns the partition, or believes to: write-through, kills and late writes.

    Whoever owns the partition reads on from the first record that was not released, as Kafka has it.
    """
    store = FakeStore()
    members = [Member(store), Member(store)]
    whole = expected(log)
    done: set[int] = set()
    positions = [0, 0]
    owner = 0
    epoch = 1

    def committed() -> int:
        return next(each for each in range(len(log) + 1) if each not in done)

    def collect() -> None:
        for which, member in enumerate(members):
            for offset, came in list(member.told.items()):
                if log[offset][0] in ("read", "extend") and which == owner and whole[offset] is not None:
                    held = None if came is None or isinstance(came, RequestError) else [int(each) for each in came]
                    seen = newest(held)
                    later = [newest(each) for each in whole[offset:]]
                    assert seen in later, "of the events before it; redelivered, perhaps of later ones or a forget too"
        done.update(members[owner].released)

    def take_over(which: int) -> None:
        nonlocal owner, epoch
        epoch += 1
        owner = which
        members[which].epoch = epoch
        positions[which] = committed()
        members[which].told.clear()
        members[which].released.clear()

    def deliver(which: int, count: int) -> None:
        for offset in range(positions[which], min(len(log), positions[which] + count)):
            kind, items = log[offset]
            members[which].submit(offset, None if kind == "read" else kind, items)  # type: ignore[arg-type]
            positions[which] = offset + 1
        collect()

    for action, which, more in actions:
        if action == "deliver":
            deliver(which if which == owner else owner, more)
        elif action == "store":
            for write in members[which].keeper.take_writes(more + 1):
                members[which].take(members[which].keeper.written(write, done=store.write(write)))
            for user in members[which].keeper.take_loads(10):
                members[which].take(members[which].keeper.loaded(user, store.read(user)))
            collect()
        elif action == "fail":
            members[which].keeper.take_loads(10)
            members[which].take(members[which].keeper.failed())
        elif action == "move":
            other = 1 - owner
            if which:  # the former owner notices
                members[owner].keeper.drop([HERE])
            collect()
            take_over(other)
        elif action == "restart":
            members[which] = Member(store)
            if which == owner:
                take_over(which)
    deliver(owner, len(log))
    members[owner].settle()
    collect()
    assert committed() == len(log), "all released"
    assert newest(members[owner].held()) == newest(whole[-1])  # type: ignore[arg-type]
    members[1 - owner].settle()  # whatever the former owner still writes
    assert newest(Member(store).held()) == newest(whole[-1])  # type: ignore[arg-type]
