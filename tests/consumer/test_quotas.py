"""Who loses when not all can be served in time."""

from hypothesis import given
from hypothesis import strategies as st

from consumer.serving.ladder import Ladder
from consumer.serving.load_settings import LoadSettings
from consumer.serving.quotas import Loser, in_time, losers
from tests.consumer.queued_item import Item, order_of

LADDER = Ladder(LoadSettings())


def lost(*items: Item, shares: dict[str, float] | None = None) -> list[Loser[Item]]:
    """Requests take ``tokens`` seconds each."""
    order = order_of(items, LADDER, lambda item: item.tokens)
    arguments = (order, 0.0, lambda waiting: waiting.item.tokens, lambda waiting: waiting.item.deadline)
    found = losers(*arguments, shares or {})
    assert in_time(*arguments) == (not found)
    return found


def names(items: list[Item], found: list[Loser[Item]]) -> list[int]:
    return sorted(items.index(each.waiting.item) for each in found)


def test_nobody_loses_while_all_can_be_served() -> None:
    assert lost(Item(2, deadline=2.0), Item(3, deadline=5.0), Item(1, deadline=6.0)) == []


def test_of_equals_the_last_that_came_loses() -> None:
    items = [Item(1, deadline=2.0) for _ in range(4)]
    assert names(items, lost(*items)) == [2, 3]


def test_the_lowest_priority_loses_first() -> None:
    items = [Item(1, deadline=2.0, priority=priority) for priority in (1, 5, 9)]
    assert names(items, lost(*items)) == [0]


def test_the_caller_with_most_for_its_share_loses_first_whatever_priority_it_claims() -> None:
    loud = [Item(1, deadline=3.0, caller="loud", priority=9) for _ in range(3)]
    meek = Item(1, deadline=3.0, caller="meek", priority=0)
    found = lost(*loud, meek)
    assert (names([*loud, meek], found), found[0].quota) == ([2], True)


def test_shares_weigh_what_callers_hold() -> None:
    items = [Item(1, deadline=4.0, caller=name) for name in "aaaabbbb"]
    assert names(items, lost(*items, shares={"a": 3.0})) == [3, 5, 6, 7]


@given(
    st.lists(
        st.builds(
            Item,
            tokens=st.integers(1, 9),
            deadline=st.floats(0, 30),
            priority=st.integers(0, 9),
            caller=st.sampled_from("abc"),
        ),
        max_size=20,
    )
)
def test_without_the_losers_all_others_are_in_time_and_no_loser_is_named_twice(items: list[Item]) -> None:
    gone = names(items, lost(*items))
    assert len(set(gone)) == len(gone)
    assert lost(*(item for place, item in enumerate(items) if place not in gone)) == []
