"""Times of the kernels on a CUDA device over their floors, each checked first.

    python -m benchmarks.kernels --out kernels.json

Times are medians of replays of captured graphs, in microseconds. A floor is what must be done by any kernel: bytes over
the copy rate that this run measured, or the library's attention on the same shape. Rivals run in the same process.
"""

import argparse
import json
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.kernel_cases import DecodeCase, DeviceTrie, PrefillCase, full_trie, skewed_trie, uniform_trie
from benchmarks.select_chain import SelectChain
from benchmarks.timing import graph_time
from kernels.attention.gluon_decode import beam_decode_attention as hopper_decode
from kernels.attention.gluon_prefill import paged_prefill_attention as hopper_prefill
from kernels.attention.paging import gather_pages
from kernels.attention.triton_decode import portable_decode
from kernels.attention.triton_prefill import portable_prefill
from kernels.elementwise.triton_qk_norm_rope_write import qk_norm_rope_write
from kernels.elementwise.triton_rms_norm import rms_norm
from kernels.elementwise.triton_silu_mul import silu_mul

SCALE = 128**-0.5
WHOLE = 1 << 20
"""Pages of a split: more than there are, so that the context is not split."""
DECODE = [
    (256, 1000, 1), (256, 1000, 4), (256, 1000, 8), (256, 5000, 1), (256, 5000, 4), (256, 5000, 8),
    (900, 1000, 1), (900, 1000, 4), (900, 1000, 8), (128, 10000, 1), (512, 10000, 4), (1024, 5000, 1),
]  # fmt: skip
PREFILL = [([1000], 1000), ([1000] * 4, 1000), ([1000] * 8, 1000), ([5000], 5000), ([5000] * 4, 5000), ([5056], 64)]
Row = dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    torch.manual_seed(0)
    bandwidth = copy_rate()
    rows: list[Row] = []
    for part in (decode_rows, prefill_rows, lambda: select_rows(bandwidth), lambda: elementwise_rows(bandwidth)):
        for row in part():
            print(json.dumps(rounded(row)), flush=True)
            rows.append(row)
    report = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "commit": options.commit,
        "copy_bytes_per_us": bandwidth,
        "sm_clock_and_power_after": card_state(),
        "rows": rows,
    }
    options.out.write_text(json.dumps(rounded(report), indent=1) + "\n")


def rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def copy_rate() -> float:
    """Bytes read and written per microsecond by a large device copy, made by a kernel: the copy engine is slower."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / graph_time([lambda: torch.neg(source, out=target)])


def card_state() -> str:
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def error(actual: Tensor, expected: Tensor) -> float:
    """Relative error in the Euclidean norm."""
    return float((actual.double() - expected).norm() / expected.norm())


def require(holds: bool, message: str) -> None:
    if not holds:
        raise RuntimeError(message)


def library_attention(q: Tensor, k: Tensor, v: Tensor, backend: SDPBackend, causal: bool) -> Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=causal)


def library_times(sets: list[tuple[Tensor, Tensor, Tensor]], causal: bool) -> Row:
    def calls(backend: SDPBackend) -> list[Callable[[], Tensor]]:
        return [lambda s=s: library_attention(*s, backend, causal) for s in sets]

    return {
        "cudnn_us": graph_time(calls(SDPBackend.CUDNN_ATTENTION)),
        "flash_us": graph_time(calls(SDPBackend.FLASH_ATTENTION)),
    }


def decode_rows() -> Iterator[Row]:
    """Two own tokens and the join included; the library has only the context, and contiguous."""
    for dtype, most in ((torch.bfloat16, 4e-3), (torch.float32, 1e-5)):
        case = DecodeCase.of([1000, 5000, 77, 128, 1], 100, dtype=dtype)
        exact = decode_exact(case)
        for attend in (portable_decode, hopper_decode):
            if attend is portable_decode or dtype == torch.bfloat16:
                found = error(attend(*case.args(), SCALE), exact)
                require(found < most, f"decode attention is off by {found}")
                yield {"kernel": attend.__module__, "case": f"against float64, {dtype}", "error": found}
    for beams, context, batch in DECODE:
        cases = [DecodeCase.of([context] * batch, beams) for _ in range(3)]
        sets = [
            (
                c.q.view(batch, beams, 8, 2, 128).transpose(1, 2).reshape(batch, 8, beams * 2, 128),
                torch.randn(batch, 8, context, 128, device="cuda", dtype=torch.bfloat16),
                torch.randn(batch, 8, context, 128, device="cuda", dtype=torch.bfloat16),
            )
            for c in cases
        ]
        row: Row = {"kernel": "decode attention", "case": f"beam {beams}, context {context}, batch {batch}"}
        for name, attend in (("triton", portable_decode), ("gluon", hopper_decode)):
            for split in (WHOLE, 20, 10):
                if split == WHOLE or split * 128 < context:
                    key = f"{name}_us" if split == WHOLE else f"{name}_split_{split}_us"
                    row[key] = graph_time([lambda c=c, a=attend, n=split: a(*c.args(), SCALE, n) for c in cases])
        yield over_library(row | library_times(sets, causal=False))


def decode_exact(case: DecodeCase) -> Tensor:
    """Float64, over the context and the own tokens at once."""
    out = torch.empty(case.q.shape, dtype=torch.float64, device="cuda")
    group = case.q.shape[2] // case.k_pages.shape[1]
    steps = torch.arange(len(case.path), device="cuda")[:, None]
    for r, length in enumerate(case.context_len.tolist()):
        both = []
        for pages, own in ((case.k_pages, case.own_k), (case.v_pages, case.own_v)):
            context = gather_pages(pages, case.page_table[r], length).double()  # [Hkv, n, D]
            decoded = own[steps, r, case.path[:, r].long()].double().permute(2, 1, 0, 3)  # [Hkv, W, S, D]
            shared = context[:, None].expand(-1, decoded.shape[1], -1, -1)
            both.append(torch.cat([shared, decoded], dim=2).repeat_interleave(group, dim=0))
        keys, values = both
        weights = (torch.einsum("whd,hwnd->hwn", case.q[r].double(), keys) * SCALE).softmax(dim=-1)
        out[r] = torch.einsum("hwn,hwnd->whd", weights, values)
    return out


def prefill_exact(case: PrefillCase) -> Tensor:
    """Float64, causal over prefix and new tokens."""
    out = torch.empty(case.q.shape, dtype=torch.float64, device="cuda")
    group = case.q.shape[1] // case.k_pages.shape[1]
    begins = case.query_begin.tolist()
    for r, length in enumerate(case.context_len.tolist()):
        rows = slice(begins[r], begins[r + 1])
        k, v = (
            gather_pages(pages, case.page_table[r], length).double().repeat_interleave(group, dim=0)
            for pages in (case.k_pages, case.v_pages)
        )
        scores = torch.einsum("thd,hnd->htn", case.q[rows].double(), k) * SCALE
        positions = torch.arange(length, device="cuda")
        hidden = positions > positions[length - scores.shape[1] :, None]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        out[rows] = torch.einsum("htn,hnd->thd", weights, v)
    return out


def prefill_rows() -> Iterator[Row]:
    for dtype, most in ((torch.bfloat16, 4e-3), (torch.float32, 1e-5)):
        case = PrefillCase.of([1000, 300, 129, 1], [1000, 44, 129, 1], dtype=dtype)
        exact = prefill_exact(case)
        for attend in (portable_prefill, hopper_prefill):
            if attend is portable_prefill or dtype == torch.bfloat16:
                found = error(attend(*case.args(), SCALE), exact)
                require(found < most, f"prefill attention is off by {found}")
                yield {"kernel": attend.__module__, "case": f"against float64, {dtype}", "error": found}
    for lengths, new in PREFILL:
        cases = [PrefillCase.of(lengths, [new] * len(lengths)) for _ in range(2)]
        name = f"context {lengths[0]}, new tokens {new}, batch {len(lengths)}"
        row: Row = {
            "kernel": "prefill attention",
            "case": name,
            "triton_us": graph_time([lambda c=c: portable_prefill(*c.args(), SCALE) for c in cases]),
            "gluon_us": graph_time([lambda c=c: hopper_prefill(*c.args(), SCALE) for c in cases]),
        }
        if new == lengths[0]:
            shape = (len(lengths), 8, new, 128)
            sets = [
                (
                    torch.randn(len(lengths), 16, new, 128, device="cuda", dtype=torch.bfloat16),
                    torch.randn(shape, device="cuda", dtype=torch.bfloat16),
                    torch.randn(shape, device="cuda", dtype=torch.bfloat16),
                )
                for _ in range(2)
            ]
            row = over_library(row | library_times(sets, causal=True))
        yield row


def over_library(row: Row) -> Row:
    best = min(us for name, us in row.items() if name.startswith(("triton", "gluon")))
    return row | {"rate_over_cudnn": row["cudnn_us"] / best}


def select_rows(bandwidth: float) -> Iterator[Row]:
    """All three steps of a search; the floor is one read of the logits of the rows that are beams."""
    tries: dict[str, Callable[[], DeviceTrie]] = {
        "10k": lambda: uniform_trie(10_000),
        "100k": lambda: uniform_trie(100_000),
        "1M": lambda: uniform_trie(1_000_000),
        "10M": lambda: uniform_trie(10_000_000),
        "1M skewed": lambda: skewed_trie(1_000_000),
        "unconstrained": full_trie,
    }
    for name, make in tries.items():
        trie = make()
        for beams, batch in ((256, 1), (256, 4), (256, 8), (900, 1), (900, 4), (900, 8)):
            chain = SelectChain(trie, beams, batch, parents_of_last=name == "unconstrained")
            chain.check()
            row = {"kernel": "expand and select", "case": f"{name}, width {beams}, batch {batch}"}
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
            us, floor = graph_time(calls), 2 * values / bandwidth
            yield {"kernel": kernel, "case": f"{tokens} tokens", "us": us, "floor_us": floor, "over_floor": us / floor}


def random(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


Calls = tuple[str, list[Callable[[], object]], int]
"""Name of the kernel, calls on different inputs, values moved by a call."""


def norm_calls(tokens: int, hidden: int = 2048) -> Calls:
    rows, weight = [random(tokens, hidden) for _ in range(4)], random(hidden)
    calls = [lambda a=a, b=b: rms_norm(a, weight, 1e-6, b) for a, b in pairwise(rows)]
    return "rms_norm with residual", calls, 4 * tokens * hidden


def gate_calls(tokens: int, inner: int = 6144) -> Calls:
    gates = [random(tokens, 2 * inner) for _ in range(2)]
    return "silu_mul", [lambda g=g: silu_mul(g) for g in gates], 3 * tokens * inner


def rope_calls(tokens: int, heads: int = 16, kv_heads: int = 8, dim: int = 128) -> Calls:
    width = (heads + 2 * kv_heads) * dim
    qkv, weight = [random(tokens, width) for _ in range(2)], random(dim)
    keys, values = random(2, tokens // 128 + 1, kv_heads, 128, dim)
    cos, sin = torch.randn(2, tokens, dim // 2, device="cuda")
    places = torch.arange(tokens, device="cuda", dtype=torch.int32)
    calls = [
        lambda x=x: qk_norm_rope_write(x, weight, weight, 1e-6, cos, sin, places, keys, values, places) for x in qkv
    ]
    return "qk_norm_rope_write", calls, 2 * tokens * width


if __name__ == "__main__":
    main()
