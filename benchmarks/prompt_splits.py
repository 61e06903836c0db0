"""Prefill attention of a few new tokens on a long resident context, by how the context is split.

``python -m benchmarks.prompt_splits``, on a Hopper device. Every case is checked against float64 and, bit for bit,
against its requests alone; times are those of a layer, padded with requests as a graph is. Beside them the library's
attention over contiguous contexts, which sees what no new token may, and the time of reading keys and values once.
"""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.card import describe, device_name
from benchmarks.floor import FloorBench
from benchmarks.kernel_attention import SCALE, error, library_times, prefill_exact, require
from benchmarks.kernel_cases import PrefillCase
from benchmarks.measure import call_us
from benchmarks.results import ReportFile, Row, default_path
from kernels.attention.gluon_prefill import paged_prefill_attention
from kernels.attention.splits import PROMPTS, PromptRule

CHECKED, TIMED = "checked", "timed"
WHOLE = PromptRule(pages=1, tiles=1)
RULES = [PromptRule(*rule) for rule in ((20, 8), (10, 8), (5, 8), (10, 16), (5, 16), (3, 16), (2, 16), (2, 32))]
_PADDED = 8
_TOLERANCE = 4e-3
_KV_HEADS, _GROUP, _DIM = 8, 2, 128
_CHECKS = [
    ([5060], [61], WHOLE),
    ([5060], [61], PROMPTS),
    ([2500, 300, 1400, 2600], [61, 300, 1, 200], PromptRule(3, 16)),
    ([1290, 1281, 513], [64, 3, 100], PromptRule(1, 32)),  # with rows that see nothing of the last part
    ([1500, 700, 1100, 700], [1500, 700, 64, 700], PROMPTS),
    ([5000, 5060, 3000], [1, 61, 500], PromptRule(2, 16)),
]
_CASES = [
    *((5060, 61, batch) for batch in (1, 2, 4, 8)),
    (1000, 1000, 1), (5000, 5000, 1),  # nothing to split: what looking for it costs
    (5060, 128, 1), (5060, 256, 1), (5060, 512, 1), (5060, 1000, 1), (5060, 128, 8), (5060, 256, 8), (5060, 1, 1),
    (5060, 1, 8), (1060, 61, 1), (1060, 61, 8), (2500, 61, 1), (2500, 61, 4), (10_000, 61, 1), (10_000, 61, 8),
]  # fmt: skip
"""Context, new tokens, batch."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    device = torch.device("cuda")
    report = ReportFile(asked.out or default_path("prompt_splits", device_name(device)), describe(device))
    report.note(kind="prompt_splits")
    for lengths, new, rule in _CHECKS:
        print(json.dumps(report.add(check(lengths, new, rule))), flush=True)
    bytes_per_us = FloorBench(device).copy_bytes_per_ms / 1e3
    for context, new_tokens, batch in _CASES:
        print(json.dumps(report.add(times(context, new_tokens, batch, bytes_per_us))), flush=True)


def name(rule: PromptRule) -> str:
    known = {WHOLE: "whole", PROMPTS: "the engine's"}
    return known.get(rule, f"{rule.pages} pages, {rule.tiles} tiles")


def check(lengths: Sequence[int], new: Sequence[int], rule: PromptRule) -> Row:
    """Raises RuntimeError if the result is wrong or depends on the batch."""
    case = PrefillCase.of(list(lengths), list(new))
    together = attend(case, rule)
    found = error(together, prefill_exact(case))
    require(found < _TOLERANCE, f"prefill attention is off by {found}: {lengths}, {new}, {rule}")
    begins = case.query_begin.tolist()
    for r, length in enumerate(lengths):
        rows, one = slice(begins[r], begins[r + 1]), slice(r, r + 1)
        alone = PrefillCase(
            q=case.q[rows].contiguous(),
            k_pages=case.k_pages,
            v_pages=case.v_pages,
            page_table=case.page_table[one, : -(-length // case.k_pages.shape[2])].contiguous(),
            query_begin=torch.tensor([0, new[r]], dtype=torch.int32, device="cuda"),
            context_len=case.context_len[one].contiguous(),
        )
        require(torch.equal(attend(alone, rule), together[rows]), f"request {r} of {lengths}, {new} is another alone")
    return {"what": CHECKED, "contexts": [*lengths], "new_tokens": [*new], "rule": name(rule), "error": found}


def times(context: int, new: int, batch: int, bytes_per_us: float) -> Row:
    cases = [padded(PrefillCase.of([context] * batch, [new] * batch)) for _ in range(3)]
    row: Row = {"what": TIMED, "context": context, "new_tokens": new, "batch": batch}
    rules = (WHOLE, PROMPTS, *RULES)
    row["us"] = {name(rule): call_us([partial(attend, case, rule) for case in cases]) for rule in rules}
    if new == context:
        return row
    sets = []
    for _ in cases:
        keys, values = (_random(batch, _KV_HEADS, context) for _ in range(2))
        sets.append((_random(batch, _KV_HEADS, new * _GROUP), keys, values))
    read = 2 * batch * _KV_HEADS * context * _DIM * 2
    return row | library_times(sets, causal=False) | {"read_us": read / bytes_per_us}


def attend(case: PrefillCase, rule: PromptRule) -> Tensor:
    return paged_prefill_attention(**case.inputs(), scale=SCALE, rule=rule)


def padded(case: PrefillCase) -> PrefillCase:
    more = _PADDED - len(case.context_len)
    return PrefillCase(
        q=case.q,
        k_pages=case.k_pages,
        v_pages=case.v_pages,
        page_table=F.pad(case.page_table, (0, 0, 0, more)),
        query_begin=torch.cat([case.query_begin, case.query_begin[-1:].expand(more)]),
        context_len=F.pad(case.context_len, (0, more)),
    )


def _random(batch: int, heads: int, rows: int) -> Tensor:
    return torch.randn(batch, heads, rows, _DIM, device="cuda", dtype=torch.bfloat16)


if __name__ == "__main__":
    main()
