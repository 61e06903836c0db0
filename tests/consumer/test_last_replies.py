"""A user's last reply in the place of a new one: only what this request may have now."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from consumer.histories.operation import UserKey
from consumer.serving.last_replies import LastReplies
from consumer.serving.load_settings import LoadSettings
from engine.catalog.resident import ResidentCatalog
from engine.errors import RequestError
from engine.request import RecallResult, TagFilter
from tests.consumer.queued_item import request
from tests.engine.catalogs import Item, catalog_of

ITEMS = [Item(n, (0, n // 2), tags=frozenset({"a"} if n % 2 else {"b"})) for n in range(8)]


@dataclass
class Catalogs:
    active: ResidentCatalog

    @contextmanager
    def pin(self, version: str | None = None) -> Iterator[ResidentCatalog]:
        if version not in (None, self.active.version):
            raise RequestError("unknown_catalog", "gone")
        yield self.active


def resident(items: list[Item], version: str = "v1") -> ResidentCatalog:
    return ResidentCatalog(catalog_of(items, (1, 4), version=version), torch.device("cpu"))


@dataclass
class Made:
    now: float = 100.0
    catalogs: Catalogs = field(default_factory=lambda: Catalogs(resident(ITEMS)))
    load: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings = LoadSettings.model_validate({"last_reply_age_s": 60.0, **self.load})
        self.replies = LastReplies(settings, self.catalogs, lambda: self.now)

    def put(self, *items: int, user: str = "u", admitted: float | None = None) -> None:
        scores = -np.arange(len(items), dtype=np.float32)
        result = RecallResult(np.array(items), scores, "m", "v0", (8, 8), exhausted=True, prefill_ms=3.0)
        self.replies.put(UserKey("t", user), request(), result, self.now if admitted is None else admitted)

    def found(self, user: str = "u", topic: str = "t", **fields: Any) -> list[int] | None:
        found = self.replies.find(UserKey(topic, user), replace(request(top_k=5), **fields))
        return None if found is None else list(found[0].items)  # type: ignore[arg-type]  # ints


def test_it_comes_back_with_its_age_under_the_version_that_it_was_checked_against() -> None:
    made = Made()
    made.put(4, 3, 7)
    made.now += 12.5
    found = made.replies.find(UserKey("t", "u"), request(top_k=5))
    assert found is not None
    result, age = found
    assert (list(result.items), age, result.catalog) == ([4, 3, 7], 12.5, "v1")
    assert (result.scores.tolist(), result.exhausted, result.prefill_ms) == ([0.0, -1.0, -2.0], False, 0.0)


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({"top_k": 2}, [4, 3]),
        ({"filter": TagFilter(none=("a",))}, [4, 6]),
        ({"filter": TagFilter(all=("a",))}, [3, 7]),
        ({"exclude": np.array([3, 99])}, [4, 7, 6]),
        ({"exclude_history": True, "history": np.array([7])}, [4, 3, 6]),
        ({"max_items_per_sid": 1}, [4, 3, 7]),
    ],
)
def test_this_requests_filter_exclusions_and_bounds_hold(fields: dict[str, Any], left: list[int]) -> None:
    made = Made()
    made.put(4, 3, 7, 6)
    assert made.found(**fields) == left


def test_items_that_have_left_the_catalog_or_are_out_of_recall_are_left_out() -> None:
    made = Made()
    made.put(4, 3, 7)
    made.catalogs.active = resident([replace(each, recallable=each.id != 3) for each in ITEMS if each.id != 7], "v2")
    assert made.found() == [4]


def test_sids_and_fields_are_those_of_the_version_that_serves() -> None:
    made = Made()
    made.put(5)
    found = made.replies.find(UserKey("t", "u"), replace(request(), return_sids=True, return_fields=("title",)))
    assert found is not None
    assert found[0].sids is not None
    assert (found[0].sids.tolist(), found[0].fields) == ([[0, 2]], {"title": ["title of 5"]})


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "another"},
        {"topic": "another"},
        {"template": "search"},
        {"context": {"hour": 1}},
        {"score": "legal"},
        {"catalog": "gone"},
        {"return_fields": ("none",)},
        {"filter": TagFilter(all=("nobody",))},
        {"exclude": ["text"]},
    ],
)
def test_there_is_none_for_another_question_or_if_nothing_of_it_is_allowed(fields: dict[str, Any]) -> None:
    made = Made()
    made.put(4, 3)
    assert made.found(**fields) is None


def test_old_ones_and_the_least_recently_made_go_and_a_user_can_be_forgotten() -> None:
    made = Made(load={"last_reply_entries": 2})
    for user in ("u", "w", "x"):
        made.put(1, user=user)
    assert (made.found("u"), made.found("w"), len(made.replies)) == (None, [1], 2)
    made.replies.forget("w")
    assert (made.found("w"), made.found("x")) == (None, [1])
    made.now += 61
    assert made.found("x") is None


def test_large_ones_are_bounded_by_their_bytes() -> None:
    made = Made(load={"last_reply_bytes": 40_000})
    for user in ("u", "w", "x"):
        made.put(*range(1_000), user=user)  # 12 bytes an item, and what an entry takes
    assert (made.found("u"), made.found("w"), made.found("x")) == (None, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    made.put(1, user="w")
    made.replies.forget("x")
    assert (len(made.replies), made.replies.nbytes < 3_000) == (1, True)
    made.replies.forget("w")
    assert made.replies.nbytes == 0


def test_string_ids_and_the_context_count_as_they_are_in_memory() -> None:
    made = Made()
    ids = [f"{n:0200d}" for n in range(100)]
    result = RecallResult(ids, np.zeros(100, np.float32), "m", "v0", (8, 8), exhausted=False)
    made.replies.put(UserKey("t", "u"), replace(request(), context={"words": "x" * 5_000}), result, made.now)
    assert 100 * 200 + 5_000 < made.replies.nbytes < 40_000


def test_one_that_is_larger_than_all_may_be_is_not_kept() -> None:
    made = Made(load={"last_reply_bytes": 0})
    made.put(1)
    assert (made.found(), len(made.replies), made.replies.nbytes) == (None, 0, 0)


def test_an_answer_to_what_was_read_before_its_user_was_forgotten_is_not_kept() -> None:
    made = Made()
    made.replies.forget("u")
    made.put(1, admitted=made.now - 0.5)
    assert made.found() is None
    made.now += 1
    made.put(2)
    assert made.found() == [2]
