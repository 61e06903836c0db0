"""Which requests make the next batch."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from consumer.serving.compose import Draft, Situation, compose, gather
from consumer.serving.cost_model import UNKNOWN, CostModel, Prior, Work
from consumer.serving.ladder import Ladder
from consumer.serving.load_settings import LoadSettings
from consumer.serving.pace import Pace
from consumer.serving.settings import BatchSettings
from tests.consumer.queued_item import FAR, Item, order_of, request

SETTINGS = BatchSettings(max_requests=4, max_tokens=1_000)
LADDER = Ladder(LoadSettings(degrade=("beam",)))


def draft(
    *items: Item,
    start: float = 0.0,
    idle: bool = False,
    pressed: bool = False,
    strict: bool = True,
    prior: Prior | None = None,
) -> Draft[Item]:
    """A batch takes a second and a second more for each 100 tokens, and the model is sure of that."""
    costs = CostModel(prior or Prior(1.0, 0.01, known=True))
    for _ in range(80):
        costs.observe("level", Work(tokens=100, rows=1), costs.predict("level", Work(tokens=100, rows=1)))
    order = order_of(items, LADDER, lambda _: 0.0)
    last = LADDER.last if prior else 0
    return compose(order, Situation(start, idle, 0, last, pressed, strict), Pace(costs, SETTINGS), SETTINGS)


def chosen(made: Draft[Item]) -> list[Item]:
    return [waiting.item for waiting in made.chosen]


def hopeless(made: Draft[Item]) -> list[Item]:
    return [waiting.item for waiting in made.hopeless]


def test_priority_goes_before_urgency_and_urgency_before_age() -> None:
    old, urgent, important = Item(), Item(deadline=500.0), Item(priority=6)
    assert chosen(draft(old, urgent, important)) == [important, urgent, old]


def test_one_that_would_make_the_tightest_late_waits_for_the_next_batch() -> None:
    tight, long = Item(100, deadline=2.5), Item(100, deadline=60.0)
    assert chosen(draft(tight, long)) == [tight]
    assert chosen(draft(replace(tight, deadline=3.5), long)) != [tight]


def test_what_is_in_the_engine_counts() -> None:
    tight, long = Item(100, deadline=3.5), Item(100, deadline=60.0)
    assert len(chosen(draft(tight, long))) == 2
    assert len(chosen(draft(tight, long, start=1.0))) == 1


def test_one_that_can_no_longer_be_served_in_time_is_passed_over() -> None:
    late, fine = Item(100, deadline=1.5), Item(100)
    made = draft(late, fine)
    assert (chosen(made), hopeless(made)) == ([fine], [late])


def test_where_nobody_is_turned_away_it_is_begun_all_the_same_and_holds_nobody_up() -> None:
    late, others = Item(100, deadline=1.5), [Item(100), Item(100)]
    assert chosen(draft(late, *others, strict=False)) == [late, *others]


def test_an_idle_engine_tries_even_that_but_only_for_want_of_better() -> None:
    late = Item(100, deadline=1.5)
    assert chosen(draft(late, idle=True)) == [late]
    assert chosen(draft(late, idle=False)) == []
    fine = Item(100)
    assert chosen(draft(late, fine, idle=True)) == [fine]


def test_where_time_is_short_a_batch_is_not_made_small_for_the_sake_of_a_few() -> None:
    tight = Item(50, deadline=1.6)
    others = [Item(50, deadline=60.0) for _ in range(3)]
    assert chosen(draft(tight, *others)) == [tight]
    made = draft(tight, *others, pressed=True)
    assert (chosen(made), hopeless(made)) == (others, [tight])


def test_it_is_made_small_where_those_it_saves_are_worth_a_batch() -> None:
    tight = [Item(100, deadline=4.2) for _ in range(3)]
    assert chosen(draft(*tight, Item(100), pressed=True)) == tight


def test_a_batch_holds_one_score_mode() -> None:
    level, vocab = Item(), Item(asked=replace(request(), score="vocab"), deadline=FAR + 1)
    assert chosen(draft(level, vocab)) == [level]


def test_one_that_is_in_time_only_with_less_gets_less() -> None:
    item = Item(deadline=2.0, asked=request(width=100))
    (variant,) = draft(item, prior=Prior(1.0, row=0.015, known=True)).variants
    assert variant.given_up == ("beam",)
    (variant,) = draft(replace(item, deadline=3.0), prior=Prior(1.0, row=0.015, known=True)).variants
    assert variant.given_up == ()


@given(
    st.lists(
        st.builds(
            Item,
            tokens=st.integers(1, 600),
            priority=st.integers(4, 6),
            deadline=st.sampled_from([FAR, FAR + 1]),
            run_key=st.sampled_from([None, None, "a", "b"]),
            asked=st.sampled_from([request(), replace(request(), score="legal")]),
        ),
        max_size=12,
    )
)
def test_where_all_are_in_time_gathering_them_is_enough(items: list[Item]) -> None:
    order = order_of(items, LADDER, lambda _: 0.0)
    careful = compose(order, Situation(0.0, True, 0, 1, False, True), Pace(CostModel(UNKNOWN), SETTINGS), SETTINGS)
    plain = len({item.asked.score for item in items}) == 1 and all(item.run_key is None for item in items)
    for quick in [gather(order, SETTINGS, plain=False), *([gather(order, SETTINGS, plain=True)] if plain else [])]:
        assert (quick.chosen, quick.variants) == (careful.chosen, careful.variants)
        assert (quick.tokens, quick.work) == (careful.tokens, careful.work)
        assert quick.hopeless == careful.hopeless == []
