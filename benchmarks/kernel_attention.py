"""Times of the attention kernels, over the library's attention on the same shape and beside flattened beams."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.cases import Case
from benchmarks.flattened import fastest_flattened
from benchmarks.kernel_cases import DecodeCase, PrefillCase
from benchmarks.measure import call_us
from benchmarks.results import Row
from benchmarks.shapes import SHAPES
from kernels.attention.gluon_decode import beam_decode_attention as hopper_decode
from kernels.attention.gluon_prefill import paged_prefill_attention as hopper_prefill
from kernels.attention.paging import gather_pages
from kernels.attention.triton_decode import portable_decode
from kernels.attention.triton_prefill import portable_prefill

SCALE = 128**-0.5
WHOLE = 1 << 20
"""Pages of a split: more than there are, so that the context is not split."""
DECODE = [
    (256, 5000, 1), (256, 5000, 4), (256, 5000, 8), (256, 1000, 1), (256, 1000, 4), (256, 1000, 8),
    (900, 1000, 1), (900, 1000, 4), (900, 1000, 8), (900, 5000, 4), (512, 1000, 4), (512, 5000, 4),
    (128, 10000, 1), (512, 10000, 4), (1024, 5000, 1), (128, 1000, 4), (128, 5000, 4), (1024, 1000, 4),
]  # fmt: skip
PREFILL = [([1000], 1000), ([1000] * 4, 1000), ([1000] * 8, 1000), ([5000], 5000), ([5000] * 4, 5000), ([5056], 64)]


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
        return [partial(library_attention, *s, backend, causal) for s in sets]

    return {
        "cudnn_us": call_us(calls(SDPBackend.CUDNN_ATTENTION)),
        "flash_us": call_us(calls(SDPBackend.FLASH_ATTENTION)),
    }


def decode_rows() -> Iterator[Row]:
    """Two own tokens and the join included, and without them; the library has only the context, and contiguous.

    ``gluon_us``, ``triton_us``: split as the engine splits, by the request's own context and never by its batch.
    """
    yield from checks()
    for beams, context, batch in DECODE:
        yield decode_row(beams, context, batch)


def checks() -> Iterator[Row]:
    for dtype, most in ((torch.bfloat16, 4e-3), (torch.float32, 1e-5)):
        case = DecodeCase.of([1000, 5000, 77, 128, 1], 100, dtype=dtype)
        exact = decode_exact(case)
        for attend in (portable_decode, hopper_decode):
            if attend is portable_decode or dtype == torch.bfloat16:
                found = error(attend(**case.inputs(), scale=SCALE), exact)
                require(found < most, f"decode attention is off by {found}")
                yield {"kernel": attend.__module__, "case": f"against float64, {dtype}", "error": found}


def decode_row(beams: int, context: int, batch: int) -> Row:
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
    for name, attend in (("gluon", hopper_decode), ("triton", portable_decode)):
        row[f"{name}_us"] = call_us([partial(attend, **c.inputs(), scale=SCALE) for c in cases])
    row["gluon_unsplit_us"] = call_us(
        [partial(hopper_decode, **c.inputs(), scale=SCALE, split_pages=WHOLE) for c in cases]
    )
    bare = [DecodeCase.of([context] * batch, beams, steps=0) for _ in range(3)]
    row["context_only_us"] = call_us([partial(hopper_decode, **c.inputs(), scale=SCALE) for c in bare])
    row |= library_times(sets, causal=False)
    row["context_rate_over_cudnn"] = row["cudnn_us"] / row["context_only_us"]
    shape = Case(SHAPES["qwen3-1.7b"], beams, context, batch)
    flattened = fastest_flattened(shape, torch.device("cuda"), torch.bfloat16)
    row["flattened_us"] = float(flattened.tried[flattened.name]) * 1e3
    row["flattened_by"] = flattened.name
    row = over_library(row)
    return row | {"flattened_over_ours": row["flattened_us"] / row["gluon_us"]}


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
                found = error(attend(**case.inputs(), scale=SCALE), exact)
                require(found < most, f"prefill attention is off by {found}")
                yield {"kernel": attend.__module__, "case": f"against float64, {dtype}", "error": found}
    for lengths, new in PREFILL:
        cases = [PrefillCase.of(lengths, [new] * len(lengths)) for _ in range(2)]
        name = f"context {lengths[0]}, new tokens {new}, batch {len(lengths)}"
        row: Row = {
            "kernel": "prefill attention",
            "case": name,
            "triton_us": call_us([partial(portable_prefill, **c.inputs(), scale=SCALE) for c in cases]),
            "gluon_us": call_us([partial(hopper_prefill, **c.inputs(), scale=SCALE) for c in cases]),
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
    return row | {"rate_over_cudnn": row["cudnn_us"] / row["gluon_us"]}
