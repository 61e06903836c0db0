import numpy as np
import pytest

from consumer.demo.checks import (
    check_all_answered,
    check_back,
    check_live,
    check_recall,
    check_refused,
    check_stopped,
    check_withdrawn,
)
from consumer.demo.movielens import MovieLens, load_movielens
from consumer.demo.traffic import TOP_K, Answer
from consumer.wire.reply import RecallReply
from tests.consumer.film_files import write_film_files

FILMS = 40
HISTORY = [1, 2, 3, 4]
ORDER = np.arange(1, FILMS + 1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> MovieLens:
    """Two users who both rated film 30 last."""
    histories = {"a": [*HISTORY, 30], "b": [*HISTORY, 30]}
    return load_movielens(write_film_files(tmp_path_factory.mktemp("films"), FILMS, histories))


def answer(*items: int, user: int = 0, catalog: str = "v1", fill: bool = True) -> Answer:
    """An answer of ``items``, filled up with films from 11 on."""
    rest = [item for item in range(11, FILMS) if item not in items and item != 30][: TOP_K - len(items)] if fill else []
    held = np.array([*items, *rest], dtype=np.int64)
    reply = RecallReply(
        v=1, status="ok", catalog=catalog, items=held, scores=np.zeros(len(held), np.float32), request_id="r"
    )
    return Answer(user, reply, None, 5.0)


FAULT = Answer(0, None, "no reply within 30 s", 30_000.0)


def test_answered_holds_for_full_answers() -> None:
    assert check_all_answered([answer(), answer()]).passed


@pytest.mark.parametrize("answers", [[], [answer(), FAULT], [answer(5, fill=False)]])
def test_answered_fails_without_answers_with_a_fault_or_a_short_one(answers: list[Answer]) -> None:
    assert not check_all_answered(answers).passed


def test_answered_names_the_first_fault() -> None:
    assert "no reply within 30 s" in check_all_answered([answer(), FAULT]).detail


def test_recall_holds_if_the_model_hits_more_than_the_popular_list(data: MovieLens) -> None:
    check = check_recall([answer(30), answer(user=1)], data, ORDER)
    assert check.passed
    assert "HR@10 0.500, by popularity 0.000; 2 users" in check.detail


def test_recall_fails_if_popularity_is_as_good(data: MovieLens) -> None:
    popular_first = np.concatenate(([30], np.delete(ORDER, 29)))
    assert not check_recall([answer(30)], data, popular_first).passed
    assert not check_recall([answer()], data, ORDER).passed
    assert not check_recall([], data, ORDER).passed


def test_the_popular_list_leaves_out_the_history_too(data: MovieLens) -> None:
    # 4 films of the history come first, then 9 others, then the target: tenth once the history is out
    order = np.array([*HISTORY, *range(5, 14), 30, *range(14, 30), *range(31, FILMS + 1)])
    assert "by popularity 1.000" in check_recall([answer()], data, order).detail


def test_live_holds_for_items_of_the_version_that_the_reply_names(data: MovieLens) -> None:
    live = {"v1": frozenset(ORDER.tolist()), "v2": frozenset({30})}
    assert check_live([answer(), answer(30, catalog="v2", fill=False)], data, live).passed


@pytest.mark.parametrize(
    "bad",
    [
        answer(30, catalog="v2"),  # live in v1 only
        answer(catalog="v3"),  # a version that nobody published
        answer(HISTORY[0]),  # of the user's own history
        answer(12, 12),  # twice
    ],
)
def test_live_fails_for_one_bad_item_among_good_answers(data: MovieLens, bad: Answer) -> None:
    live = {"v1": frozenset(ORDER.tolist()), "v2": frozenset({30})}
    assert not check_live([answer(), bad, answer()], data, live).passed


def test_live_fails_without_items(data: MovieLens) -> None:
    assert not check_live([], data, {}).passed


def test_withdrawn_holds_if_the_new_version_recalls_none_of_them() -> None:
    before, after = [answer(35)], [answer(35), answer(catalog="v2"), answer(catalog="v2")]
    assert check_withdrawn(before, after, "v2", [35], least=2).passed


def test_withdrawn_fails_if_one_comes_back() -> None:
    after = [answer(catalog="v2"), answer(35, catalog="v2")]
    assert not check_withdrawn([answer(35)], after, "v2", [35], least=2).passed


def test_withdrawn_fails_if_too_few_answers_prove_it_or_it_was_never_recalled() -> None:
    after = [answer(catalog="v2")]
    assert not check_withdrawn([answer(35)], after, "v2", [35], least=2).passed
    assert not check_withdrawn([answer()], after, "v2", [35], least=1).passed


def test_refused_holds_if_serving_goes_on_from_the_version_before() -> None:
    check = check_refused("checksum: chunk 0 is damaged", [answer(catalog="v2")] * 2, "v3", "v2", least=2)
    assert check.passed
    assert "checksum" in check.detail


@pytest.mark.parametrize(
    ("refusal", "after"),
    [
        (None, [answer(catalog="v2")] * 2),
        ("checksum", [answer(catalog="v2"), answer(catalog="v3")]),
        ("checksum", [answer(catalog="v2"), answer(catalog="v1")]),
        ("checksum", [answer(catalog="v2")]),
        ("checksum", [answer(catalog="v2"), FAULT]),
    ],
)
def test_refused_fails_without_a_refusal_or_without_answers_from_the_version_before(
    refusal: str | None, after: list[Answer]
) -> None:
    assert not check_refused(refusal, after, "v3", "v2", least=2).passed


def test_back_holds_if_every_withdrawn_film_is_recalled_again() -> None:
    assert check_back([answer(35), answer(36)], "v1", [35, 36]).passed


def test_back_fails_if_one_stays_away_or_comes_from_another_version() -> None:
    assert not check_back([answer(35)], "v1", [35, 36]).passed
    assert not check_back([answer(35), answer(36, catalog="v2")], "v1", [35, 36]).passed
    assert not check_back([answer(35)], "v1", []).passed


@pytest.mark.parametrize(("code", "passed"), [(0, True), (1, False), (-9, False), (None, False)])
def test_only_exit_code_zero_is_a_clean_stop(code: int | None, passed: bool) -> None:
    assert check_stopped(code).passed is passed


def test_an_answer_without_a_reply_has_no_items_and_no_version() -> None:
    assert FAULT.items == ()
    assert FAULT.catalog is None
