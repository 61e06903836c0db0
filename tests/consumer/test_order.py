"""The order in which waiting requests are served."""

from hypothesis import given
from hypothesis import strategies as st

from consumer.serving.cost_model import UNKNOWN, CostModel
from consumer.serving.ladder import Ladder
from consumer.serving.load_settings import LoadSettings
from consumer.serving.order import UrgencyOrder, Waiting, arrivals
from consumer.serving.pace import Pace
from consumer.serving.settings import BatchSettings
from tests.consumer.queued_item import Item

PACE, LADDER = Pace(CostModel(UNKNOWN), BatchSettings()), Ladder(LoadSettings())
item = st.builds(Item, priority=st.integers(4, 6), deadline=st.floats(0, 9))
few_or_many = st.lists(item, max_size=2) | st.lists(item, min_size=30, max_size=50)
runs = st.lists(st.tuples(few_or_many, st.floats(0, 1)), max_size=8)


@given(runs)
def test_however_many_come_at_a_time_the_most_urgent_stand_first(steps: list[tuple[list[Item], float]]) -> None:
    order: UrgencyOrder[Item] = UrgencyOrder()
    waiting: list[Waiting[Item]] = []
    first = 0
    for items, share in steps:
        come = arrivals(items, first, LADDER, PACE)
        first += len(items)
        order.add(come)
        waiting = sorted(waiting + come, key=lambda each: (-each.item.priority, each.item.deadline, each.key))
        assert list(order) == waiting
        assert order.first(3) == waiting[:3]
        gone = waiting[int(share * len(waiting)) :: 3]
        order.remove(gone)
        waiting = [each for each in waiting if each not in gone]
        assert list(order) == waiting
