"""Whole histories that requests bring are held unpacked until asked for: nobody can tell the difference."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.histories.items import Cap
from consumer.histories.keeper import Keeper
from consumer.histories.operation import Brought, Operation, UserKey
from consumer.histories.settings import HistorySettings
from consumer.stream.partition import Partition
from engine.errors import RequestError

CAP = Cap(6, 3)
PARTITIONS = (Partition("t", 0), Partition("t", 1))


@dataclass
class Process:
    """A keeper without a store. ``lazy``: it takes whole histories as requests bring them."""

    lazy: bool
    more: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chosen = HistorySettings.model_validate(self.more)
        self.keeper: Keeper[int] = Keeper(chosen, CAP, lambda: 0.0)
        self.told: list[object] = []
        self.run: list[Brought] = []

    def take(self, kind: str, user: int, partition: int, epoch: int, offset: int, count: int) -> None:
        change = None if kind == "read" else kind
        items = ["a"] * count if kind == "strings" else np.arange(offset, offset + count)
        operation: Operation[int] = Operation(
            offset,
            UserKey("t", str(user)),
            PARTITIONS[partition],
            epoch,
            offset,
            "set" if kind == "strings" else change,  # type: ignore[arg-type]
            0.0,
            items,
            kind in ("read", "extend"),
            told=kind in ("set", "strings"),
        )
        if self.lazy and operation.told:
            self.run.append(Brought(operation.user, operation.partition, epoch, offset, items))
            return
        self.settle()
        for each in self.keeper.submit(operation).told:
            came = each.came
            self.told.append(came.code if isinstance(came, RequestError) else None if came is None else list(came))

    def settle(self) -> None:
        """Bring what has gathered."""
        self.keeper.bring(self.run)
        self.run = []

    def drop(self, partition: Partition) -> None:
        self.settle()
        self.keeper.drop([partition])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("set", "set", "strings", "append", "extend", "read", "forget", "drop")),
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(0, 15),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.sampled_from([({}, 1), ({}, 5), ({"entries": 2}, 1)]))
def test_a_history_that_was_brought_is_the_one_that_would_have_been_held(
    steps: list[tuple[str, int, int, int]], how: tuple[dict[str, int], int]
) -> None:
    more, most = how  # which come together
    lazy, eager = Process(True, more), Process(False, more)
    epoch = 1
    for offset, (kind, user, partition, count) in enumerate(steps):
        if kind == "drop":
            epoch += 1
            for each in (lazy, eager):
                each.drop(PARTITIONS[partition])
        else:
            for each in (lazy, eager):
                each.take(kind, user, partition, epoch, offset, count)
        if len(lazy.run) == most:
            lazy.settle()
        if not lazy.run:
            assert len(lazy.keeper) == len(eager.keeper)
            assert lazy.keeper.counts == eager.keeper.counts
    for user in range(3):
        for each in (lazy, eager):
            each.take("read", user, 0, epoch, 1_000, 0)
    assert lazy.told == eager.told
    for each in (lazy, eager):
        each.keeper.drop(PARTITIONS)
        assert (len(each.keeper), each.keeper.nbytes) == (0, 0)


def test_who_comes_by_two_partitions_at_once_and_by_one_of_them_again_keeps_the_later_history() -> None:
    for lazy in (True, False):
        process = Process(lazy)
        process.take("set", 0, 0, 1, 5, 3)
        process.take("set", 0, 1, 1, 6, 2)
        process.drop(PARTITIONS[0])
        process.take("set", 0, 0, 2, 5, 3)
        process.take("read", 0, 1, 1, 7, 0)
        assert process.told == [[6, 7]]


def test_what_was_brought_counts_against_the_bounds_and_leaves_first_come_first() -> None:
    for more in ({"entries": 10}, {"max_bytes": 11_000}):
        process = Process(True, more)
        for user in range(200):
            process.take("set", user, 0, 1, user, 5)
            process.settle()
        assert 9 <= len(process.keeper) <= 11
        assert process.keeper.counts.evicted >= 189
        process.take("read", 199, 0, 1, 1_000, 0)
        process.take("read", 0, 0, 1, 1_001, 0)
        assert process.told == [[199, 200, 201, 202, 203], "need_history"]
