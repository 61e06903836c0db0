"""The choice of float8 products from their times, and what the page of results says of float8."""

import json

import numpy as np
import pytest

from benchmarks.fp8_kinds import steps, with_entries
from benchmarks.quality import agreement_rows, shared
from docs.performance_quality import products_section, quality_section

HEAD = {"device": "CPU", "torch": "2.11", "commit": "abc"}


def rows(*times: tuple[int, float, float, float]) -> list[dict[str, object]]:
    kinds = ("dense", "tensorwise", "rowwise")
    return [
        {"model": "m", "part": "qkv", "rows": size, "product": kind, "us": us}
        for size, *each in times
        for kind, us in zip(kinds, each, strict=True)
    ]


def test_the_fastest_kind_is_kept_until_another_is_worth_the_change() -> None:
    measured = rows((64, 9, 5, 6), (128, 9, 6, 5.95), (256, 9, 8, 7), (512, 9, 8, 9))
    assert steps(measured) == [(192, "tensorwise"), (384, "rowwise"), (None, "tensorwise")]


def test_a_dense_product_must_gain_more_for_it_takes_the_matrix_twice() -> None:
    assert steps(rows((64, 5.8, 6, 7))) == [(None, "tensorwise")]
    assert steps(rows((64, 5.5, 6, 7))) == [(None, "dense")]


def test_new_entries_join_those_of_other_matrices_and_devices() -> None:
    table = {"9.0": {"1x1": [[None, "dense"]], "2x2": [[None, "dense"]]}, "8.9": {"1x1": [[None, "rowwise"]]}}
    text = with_entries(table, "9.0", {"1x1": [(64, "rowwise"), (None, "tensorwise")]})
    assert json.loads(text) == {
        "9.0": {"1x1": [[64, "rowwise"], [None, "tensorwise"]], "2x2": [[None, "dense"]]},
        "8.9": {"1x1": [[None, "rowwise"]]},
    }


def test_agreement_counts_what_both_have_among_their_first() -> None:
    pairs = [(np.array([1, 2, 3]), np.array([2, 1, 9])), (np.array([4]), np.array([4, 5]))]
    assert shared(pairs, 2) == pytest.approx((2 / 2 + 1 / 2) / 2)
    assert shared(pairs, 1) == pytest.approx((0 + 1) / 2)
    found = {precision: [ours] for precision, (ours, _) in zip(("fp32", "bf16"), pairs, strict=True)}
    found["fp8"] = found["fp32"]
    told = {(row["precision"], row["against"]): row["top-1"] for row in agreement_rows("m", found, (2,), {})}
    assert told == {("bf16", "fp32"): 0.0, ("fp8", "fp32"): 1.0, ("fp8", "bf16"): 0.0}


def test_the_page_shows_recall_and_agreement() -> None:
    report = HEAD | {
        "rows": [
            {"what": "recall", "precision": "fp8", "users": 6040, "hr@10": 0.31, "ndcg@10": 0.18},
            {"what": "agreement", "model": "m", "requests": 8, "precision": "fp8", "against": "bf16", "top-1": 0.5,
             "top-10": 0.75},
        ]
    }  # fmt: skip
    page = "\n".join(quality_section("", report))
    assert "| fp8 | 6,040 | 0.31 | 0.18 |" in page
    assert "| m | 8 | fp8 | bf16 | 0.5 | 0.75 |" in page


def test_the_page_adds_a_layers_products_up() -> None:
    report = HEAD | {"rows": rows((256, 9, 5, 6)) + [row | {"part": "o"} for row in rows((256, 4, 5, 6))]}
    assert "| m | 256 | 13 | 10 | 12 | 9 | 0.69 |" in "\n".join(products_section("", report))
