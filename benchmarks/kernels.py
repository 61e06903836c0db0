"""Times of the kernels on a CUDA device over their floors, each checked first.

    python -m benchmarks.kernels --out kernels.json

Times are medians of replays of captured graphs, in microseconds. A floor is what must be done by any kernel: bytes over
the copy rate that this run measured, or the library's attention on the same shape. Rivals run in the same process.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.card import CardWatch, describe
from benchmarks.kernel_attention import decode_rows, prefill_rows
from benchmarks.kernel_cases import DeviceTrie, full_trie, skewed_trie, uniform_trie
from benchmarks.measure import Microseconds, WallLimit, call_us
from benchmarks.results import ReportFile, Row
from benchmarks.select_chain import SelectChain
from kernels.elementwise.triton_qk_norm_rope_write import qk_norm_rope_write
from kernels.elementwise.triton_rms_norm import rms_norm
from kernels.elementwise.triton_silu_mul import silu_mul
from kernels.linear.triton_gated_product import gated_product
from kernels.linear.triton_log_sum_exp import log_sum_exp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wall-s", type=float, help="start nothing more after so many seconds")
    options = parser.parse_args()
    limit, device = WallLimit(options.wall_s), torch.device("cuda")
    torch.manual_seed(0)
    bandwidth = copy_rate()
    report = ReportFile(options.out, {"kind": "kernels", **describe(device), "copy_bytes_per_us": bandwidth})
    with CardWatch(device) as watch:
        parts = (
            decode_rows,
            partial(select_rows, bandwidth),
            prefill_rows,
            partial(elementwise_rows, bandwidth),
            product_rows,
        )
        for part in parts:
            rows = part()
            while not limit.passed and (row := next(rows, None)) is not None:
                print(json.dumps(report.add(finished(row))), flush=True)
    report.note(card=watch.summary())


def finished(row: Row) -> Row:
    """Rounded; ``spread``: the widest of its timings, (slowest - fastest) / median."""
    spreads = [(each.high - each.low) / each for each in row.values() if isinstance(each, Microseconds)]
    done = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in row.items()}
    return done | ({"spread": round(max(spreads), 3)} if spreads else {})


def copy_rate() -> float:
    """Bytes read and written per microsecond by a large device copy, made by a kernel: the copy engine is slower."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / call_us([lambda: torch.neg(source, out=target)])


def select_rows(bandwidth: float) -> Iterator[Row]:
    """All three steps of a search; the floor is one read of the logits of the rows that are beams."""
    tries: dict[str, Callable[[], DeviceTrie]] = {
        "10k": lambda: uniform_trie(10_000),
        "100k": lambda: uniform_trie(100_000),
        "1M": lambda: uniform_trie(1_000_000),
        "10M": lambda: uniform_trie(10_000_000),
        "1M skewed": lambda: skewed_trie(1_000_000),
        "10M skewed": lambda: skewed_trie(10_000_000),
        "unconstrained": full_trie,
    }
    for name, make in tries.items():
        trie = make()
        for beams, batch in ((256, 1), (256, 4), (256, 8), (900, 1), (900, 4), (900, 8)):
            chain = SelectChain(trie, beams, batch, parents_of_last=name == "unconstrained")
            chain.check()
            row: Row = {"kernel": "expand and select", "case": f"{name}, width {beams}, batch {batch}"}
            row |= {
                "us": chain.time(),
                "second_step_us": chain.time_step(1),
                "without_early_end_us": chain.time(early_end=False),
                "floor_us": chain.logit_bytes() / bandwidth,
                "short_list": chain.short_list(),
            }
            if name != "unconstrained":
                row["with_a_filter_us"] = chain.time(live_share=0.3)
            if name in ("10M", "unconstrained"):
                row["all_equal_us"] = chain.time(equal=True)
            if name == "unconstrained":
                row["torch_one_step_us"] = chain.time_torch()
            yield row


def elementwise_rows(bandwidth: float) -> Iterator[Row]:
    """The shapes of Qwen3-1.7B; the floor is every input read once and every output written once."""
    for tokens in (256, 2048, 40000):
        for kernel, calls, values in (norm_calls(tokens), gate_calls(tokens), rope_calls(tokens)):
            us, floor = call_us(calls), 2 * values / bandwidth
            yield {"kernel": kernel, "case": f"{tokens} tokens", "us": us, "floor_us": floor, "over_floor": us / floor}


def product_rows() -> Iterator[Row]:
    """Products that finish what they compute, beside the library's product alone (``product_us``) and, of gates, beside
    that and the kernel that gates what it wrote (``apart_us``). What they compute is compared in ``tests/kernels``.
    """
    for rows in (256, 1800, 7200):
        x, weight = random(rows, 1024), random(151_936, 1024)
        us, product = (call_us([partial(multiply, x, weight)]) for multiply in (log_sum_exp, F.linear))
        yield {
            "kernel": "log_sum_exp",
            "case": f"{rows} rows, Qwen3-0.6B's vocabulary",
            "us": us,
            "product_us": product,
        }
    for model, hidden, inner in (("0.6B", 1024, 3072), ("1.7B", 2048, 6144), ("4B", 2560, 9728)):
        weights = [random(2 * inner, hidden) for _ in range(4)]  # no cache holds them all
        for rows in (256, 1024, 2048, 8192):
            x = random(rows, hidden)
            us, product, apart = (
                call_us([partial(multiply, x, weight) for weight in weights])
                for multiply in (gated_product, F.linear, lambda x, w: silu_mul(F.linear(x, w)))
            )
            row: Row = {"kernel": "gated_product", "case": f"{rows} rows, Qwen3-{model}"}
            yield row | {"us": us, "product_us": product, "apart_us": apart}


def random(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


Calls = tuple[str, Sequence[Callable[[], object]], int]
"""Name of the kernel, calls on different inputs, values moved by a call."""


def norm_calls(tokens: int, hidden: int = 2048) -> Calls:
    rows, weight = [random(tokens, hidden) for _ in range(4)], random(hidden)
    calls: Sequence[Callable[[], object]] = [partial(rms_norm, a, weight, 1e-6, b) for a, b in pairwise(rows)]
    return "rms_norm with residual", calls, 4 * tokens * hidden


def gate_calls(tokens: int, inner: int = 6144) -> Calls:
    gates = [random(tokens, 2 * inner) for _ in range(2)]
    return "silu_mul", [partial(silu_mul, g) for g in gates], 3 * tokens * inner


def rope_calls(tokens: int, heads: int = 16, kv_heads: int = 8, dim: int = 128) -> Calls:
    width = (heads + 2 * kv_heads) * dim
    qkv, weight = [random(tokens, width) for _ in range(2)], random(dim)
    keys, values = random(2, tokens // 128 + 1, kv_heads, 128, dim)
    cos, sin = torch.randn(2, tokens, dim // 2, device="cuda")
    places = torch.arange(tokens, device="cuda", dtype=torch.int32)
    calls = [partial(qk_norm_rope_write, x, weight, weight, 1e-6, cos, sin, places, keys, values, places) for x in qkv]
    return "qk_norm_rope_write", calls, 2 * tokens * width


if __name__ == "__main__":
    main()
