"""What the benchmarks make of a profiler trace, of a search without a constraint, and of the targets."""

from typing import Any

import pytest
import torch

from benchmarks.cases import Case
from benchmarks.engine_run import graphs_of
from benchmarks.shapes import SHAPES
from benchmarks.timeline import Span, shares
from benchmarks.unconstrained import FreeSelection
from docs.performance_targets import targets_section
from engine.runtime import buckets
from kernels import backend
from kernels.selection.tries import NO_ITEM, LevelTries

CPU = torch.device("cpu")


def test_idle_time_and_streams_side_by_side_are_shares_of_the_whole() -> None:
    spans = [Span(1, 0, 40), Span(2, 30, 50), Span(1, 60, 80), Span(1, 80, 100)]
    assert shares(spans) == {
        "seconds": 0.0001, "idle": 0.1, "streams_side_by_side": 0.1, "pieces_of_work": 4,
    }  # fmt: skip
    assert shares([]) == {}


def test_only_the_graphs_of_the_cases_are_captured_and_then_all_again() -> None:
    before = buckets.WIDTHS, buckets.REQUESTS
    tiny = SHAPES["tiny"]
    with graphs_of([Case(tiny, 100, 20, 2), Case(tiny, 256, 20, 5)]):
        assert list(buckets.WIDTHS) == [128, 256]
        assert list(buckets.REQUESTS) == [2, 6]
        assert buckets.width_buckets(256) == (128, 256)
    assert before == (buckets.WIDTHS, buckets.REQUESTS)


def test_without_a_constraint_the_best_of_all_codes_are_taken() -> None:
    codes, width = 8, 3
    logits = torch.randn(1, width, codes, generator=torch.Generator().manual_seed(1))
    scores = torch.tensor([[0.0, -0.1, -0.2]])
    one = torch.ones(1, dtype=torch.int32)
    only = torch.tensor([0, 1], dtype=torch.int32)
    real = LevelTries.of([only], [torch.zeros(1, dtype=torch.int32)], [only], [only])  # one item, by one code
    with FreeSelection(codes, CPU).in_place():
        found = backend.expand_select(
            logits, scores, torch.arange(width, dtype=torch.int32)[None], width * one, width * one, real,
            torch.tensor([[NO_ITEM]], dtype=torch.int32), None, torch.zeros(1, dtype=torch.bool),
            torch.tensor([torch.inf]), one, width,
        )  # fmt: skip
    best = (logits.log_softmax(-1) + scores[..., None]).flatten().topk(width)
    torch.testing.assert_close(found.scores[0], best.values)
    assert found.codes[0].tolist() == (best.indices % codes).tolist()
    assert found.nodes.tolist() == [[0, 1, 2]]  # no two beams have the same


def online_report(**changes: Any) -> dict[str, Any]:
    row = {
        "what": "online", "case": "c", "outstanding": 4, "mixed": False, "of_offline": 0.95, "p99_over_p50": 1.2,
        "padded": {}, "engine_counts": {},
    }  # fmt: skip
    return {"kind": "online", "rows": [row | changes]}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "| requests/s through Kafka over the offline rate | ≥ 0.93 | met | 0.95 (c) |"),
        ({"of_offline": 0.9}, "| ≥ 0.93 | **missed**: met by 0 of 1 | 0.9 (c) |"),
        ({"p99_over_p50": 1.4}, "| p99 over p50 through Kafka | ≤ 1.3 | **missed**: met by 0 of 1 | 1.4 (c) |"),
        (
            {"mixed": True, "engine_counts": {"graph_searches": 98, "graph_prefills": 99, "eager_prefills": 3}},
            "| mixed load: stages that ran from a graph | ≥ 0.99 | **missed**: met by 0 of 1 | 0.985 (c) |",
        ),
    ],
)
def test_the_targets_are_compared_with_what_was_measured(changes: dict[str, Any], line: str) -> None:
    assert line in "\n".join(targets_section([online_report(**changes)]))


def test_targets_that_nothing_was_measured_for_are_left_out() -> None:
    assert list(targets_section([])) == []
