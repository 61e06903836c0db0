"""What float8 gains and what it does to the answers, on the page of measured results."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.results import Row
from docs.markdown import table, where

PRODUCT_ROWS = (256, 1024, 2048, 8192, 40960)


def quality_section(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    yield "## What a precision does to the answers\n"
    yield (
        f"{where(report)}. Recall: leave-last-out over MovieLens-1M, the history left out, the demo's model. "
        "Agreement: the share of the first items that both precisions have among theirs, top-1 the same best item. "
        "Random weights are a hard case: their scores are nearly flat, so that rounding decides among many candidates; "
        "a trained model is less affected.\n"
    )
    rows: list[Row] = report["rows"]
    yield from table(
        ("precision", "users", "HR@10", "NDCG@10"),
        [(row["precision"], f"{row['users']:,}", row["hr@10"], row["ndcg@10"])
         for row in rows if row["what"] == "recall"],
    )  # fmt: skip
    agreements = [row for row in rows if row["what"] == "agreement"]
    tops = sorted({int(key[4:]) for row in agreements for key in row if key.startswith("top-")})
    yield from table(
        ("model", "requests", "precision", "against", *(f"top-{top}" for top in tops)),
        [(row["model"], f"{row['requests']:,}", row["precision"], row["against"],
          *(row.get(f"top-{top}", "") for top in tops))
         for row in agreements],
    )  # fmt: skip


def products_section(_stem: str, report: Mapping[str, Any]) -> Iterator[str]:
    """A layer's four products with what float8 adds to them."""
    yield "## Products of a layer in float8\n"
    yield (
        f"{where(report)}. Microseconds of the four products of one layer, each with the kernel that reads it and, "
        "for attention's output, the one that quantises it: in bfloat16, tensor-wise, row-wise, and the fastest of "
        "the three for each product, which is what the engine takes.\n"
    )
    times: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    for row in report["rows"]:
        times.setdefault((row["model"], row["rows"]), {}).setdefault(row["part"], {})[row["product"]] = row["us"]
    yield from table(
        ("model", "rows", "bfloat16", "tensor-wise", "row-wise", "fastest", "of bfloat16"),
        [(model, f"{rows:,}", *_sums(parts)) for (model, rows), parts in times.items() if rows in PRODUCT_ROWS],
    )


def _sums(parts: Mapping[str, Mapping[str, float]]) -> tuple[str, ...]:
    dense, tensorwise, rowwise = (
        sum(part[kind] for part in parts.values()) for kind in ("dense", "tensorwise", "rowwise")
    )
    fastest = sum(min(part.values()) for part in parts.values())
    return *(f"{us:,.0f}" for us in (dense, tensorwise, rowwise, fastest)), f"{fastest / dense:.2f}"
