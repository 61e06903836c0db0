"""Which product is fastest for each matrix and number of rows, on a CUDA device; writes the engine's table.

    python -m benchmarks.fp8_kinds --out fp8_products.json [--write]

Each of a layer's four matrices is timed with what its kind costs around it: the quantising of attention's output, the
kernel that reads the product and applies its scales, or the addition inside a dense product. Calls stand in one CUDA
graph and go round over copies of the weights that no cache holds. ``--write`` puts the choice into the engine's table.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from benchmarks.card import describe
from benchmarks.measure import WallLimit, graph_ms
from benchmarks.results import ReportFile, Row, default_path
from benchmarks.shapes import SHAPES, Shape
from engine.model.linear import DenseLinear, Fp8Linear, Linear, quantised_for
from engine.model.residual import Residual
from kernels import backend
from kernels.linear.kinds import TABLE, Kind, Kinds

MODELS = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b")
ROWS = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 20480, 40960)
CACHE_BYTES = 150 << 20  # more than twice the largest L2
CACHED_ROWS = 2048  # more rows than these leave no weights in a cache
WORTH = 0.96  # another kind must take at most this share of the time; two runs differ by 2 to 4 %
DENSE_WORTH = 0.95  # and one that needs the weights twice at most this
EPS = 1e-6
RUNS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--write", action="store_true", help="change the engine's table")
    parser.add_argument("--wall-s", type=float, help="start nothing more after so many seconds")
    options = parser.parse_args()
    device, limit = torch.device("cuda"), WallLimit(options.wall_s)
    head = {"kind": "fp8_products", **describe(device)}
    report = ReportFile(options.out or default_path("fp8_products", torch.cuda.get_device_name()), head)
    table: dict[str, list[tuple[int | None, Kind]]] = {}
    for shape in (SHAPES[name] for name in options.models):
        for part, (out, inputs) in zip(STEPS, shape.products, strict=True):
            if limit.passed:
                break
            rows = [report.add(row) for row in timed(shape, part, device)]
            table[f"{out}x{inputs}"] = steps(rows)
            print(shape.name, part, table[f"{out}x{inputs}"], flush=True)
    if options.write:
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
        TABLE.write_text(with_entries(json.loads(TABLE.read_text()), capability, table))


def timed(shape: Shape, part: str, device: torch.device) -> list[Row]:
    """Microseconds of one matrix by rows and kind."""
    out, inputs = dict(zip(STEPS, shape.products, strict=True))[part]
    weights = [DenseLinear(random(out, inputs) * inputs**-0.5) for _ in range(max(3, CACHE_BYTES // (out * inputs)))]
    narrow = [Fp8Linear.of(weight) for weight in weights]
    found = []
    for rows in ROWS:
        step = STEPS[part](shape, rows)
        count = len(weights) if rows <= CACHED_ROWS else 3
        for kind in get_args(Kind):
            one = Kinds(((None, kind),))
            linears = weights if kind == "dense" else [replace(each, kinds=one) for each in narrow]
            timing = graph_ms(partial(each_of, step, linears[:count]), device, RUNS)
            found.append(
                {"model": shape.name, "part": part, "out": out, "inputs": inputs, "rows": rows, "product": kind,
                 "us": round(timing.median_ms * 1e3 / count, 2)}
            )  # fmt: skip
    return found


def each_of(step: Callable[[Linear], object], linears: Sequence[Linear]) -> None:
    for linear in linears:
        step(linear)


def qkv_step(shape: Shape, rows: int) -> Callable[[Linear], object]:
    """The product, then norms, rotation and the writing of keys and values."""
    x, half = random(rows, shape.hidden), shape.head_dim // 2
    weight, table = random(shape.head_dim), torch.rand(rows, half, device="cuda")
    pages = torch.zeros(2, -(-rows // 128), shape.kv_heads, 128, shape.head_dim, device="cuda", dtype=torch.bfloat16)
    place = torch.arange(rows, device="cuda", dtype=torch.int32)
    quantised = backend.quantise(x)
    return lambda linear: backend.qk_norm_rope_write(
        linear(quantised if linear.takes_fp8(rows) else x),
        weight,
        weight,
        EPS,
        table,
        table,
        place,
        pages[0],
        pages[1],
        place,
    )


def o_step(shape: Shape, rows: int) -> Callable[[Linear], object]:
    """The quantising of what attention gives, the product, then the norm that adds it."""
    attended, state = random(rows, shape.heads * shape.head_dim), Residual(random(rows, shape.hidden), EPS)
    weight, follows = random(shape.hidden), _always_fp8(shape.hidden)

    def step(linear: Linear) -> object:
        state.add(linear, quantised_for(linear, attended))
        return state.operand(weight, follows)

    return step


def gate_up_step(shape: Shape, rows: int) -> Callable[[Linear], object]:
    """The product, then the gated activation."""
    x = random(rows, shape.hidden)
    quantised = backend.quantise(x)
    return lambda linear: backend.silu_mul_fp8(linear(quantised if linear.takes_fp8(rows) else x))


def down_step(shape: Shape, rows: int) -> Callable[[Linear], object]:
    """The product, then the norm that adds it."""
    x, state = random(rows, shape.inner), Residual(random(rows, shape.hidden), EPS)
    weight, follows, quantised = random(shape.hidden), _always_fp8(shape.hidden), backend.quantise(x)

    def step(linear: Linear) -> object:
        state.add(linear, quantised if linear.takes_fp8(rows) else x)
        return state.operand(weight, follows)

    return step


STEPS: dict[str, Callable[[Shape, int], Callable[[Linear], object]]] = {
    "qkv": qkv_step,
    "o": o_step,
    "gate_up": gate_up_step,
    "down": down_step,
}


def steps(rows: Sequence[Row]) -> list[tuple[int | None, Kind]]:
    """The fastest kind by rows; one is kept until another is worth the change, which comes half-way between sizes."""
    by_rows: dict[int, dict[Kind, float]] = {}
    for row in rows:
        by_rows.setdefault(row["rows"], {})[row["product"]] = row["us"] * (
            1 / DENSE_WORTH if row["product"] == "dense" else 1
        )
    chosen: list[tuple[int | None, Kind]] = []
    last = 0
    for size, times in by_rows.items():
        best = min(times, key=lambda kind: times[kind])
        if not chosen:
            chosen.append((None, best))
        elif times[best] < WORTH * times[chosen[-1][1]]:
            chosen[-1] = ((last + size) // 2, chosen[-1][1])
            chosen.append((None, best))
        last = size
    return chosen


def with_entries(table: Mapping[str, Mapping[str, object]], capability: str, entries: Mapping[str, object]) -> str:
    """The table as text with these entries new, one matrix a line."""
    devices = []
    for device, matrices in {**table, capability: {**table.get(capability, {}), **entries}}.items():
        lines = ",\n".join(f'  "{matrix}": {json.dumps(kinds)}' for matrix, kinds in matrices.items())
        devices.append(f' "{device}": {{\n{lines}\n }}')
    return "{\n" + ",\n".join(devices) + "\n}\n"


def random(*size: int) -> Tensor:
    return torch.randn(size, device="cuda", dtype=torch.bfloat16)


def _always_fp8(size: int) -> Linear:
    return replace(Fp8Linear.of(DenseLinear(random(16, size))), kinds=Kinds(((None, "tensorwise"),)))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
