"""The practical floor of a case: each product and attention that no engine can leave out, by the best library kernel.

*Alone*: every kernel timed by itself with cold caches, and the times added up. *Chained* (``chained_floor``): the same
kernels one after another in one CUDA graph, with the weights and contexts of all layers, so that no timer stands
between them and the card heats as it does in an engine.

Products are cuBLAS bfloat16, or for FP8 the fastest of bfloat16, tensor-wise and row-wise scaled FP8. Attention is the
faster of FlashAttention and cuDNN over contiguous contexts; in decoding, all beams and query heads of a key head are
the rows of one product. Norms and activations are counted as ten reads or writes of the hidden state and three of the
inner one per layer, at the rate of a large copy.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.cases import Case, Precision
from benchmarks.flattened import Flattened
from benchmarks.measure import Timing, graph_ms, kernel_ms

Kind = Literal["bf16", "fp8 tensor-wise", "fp8 row-wise"]
_FP8_ROWS = 16  # scaled products want a multiple
_HIDDEN_PASSES, _INNER_PASSES = 10, 3
_COPY_BYTES = {"cuda": 2 << 30, "cpu": 64 << 20}

Product = tuple[int, int, int]
"""Rows, outputs, inputs."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Milliseconds of a whole batch, and by which kernels. ``chained_ms`` holds products and attentions only."""

    prefill_products: float
    prefill_attention: float
    decode_products: float
    decode_attention: float
    head: float
    elementwise: float
    backends: tuple[str, ...]
    kinds: dict[str, Kind]

    @property
    def total(self) -> float:
        return (
            self.prefill_products
            + self.prefill_attention
            + self.decode_products
            + self.decode_attention
            + self.head
            + self.elementwise
        )


class FloorBench:
    """Times products and attentions on one device; a shape that comes again is not timed again."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.fp8 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)
        self.copy_bytes_per_ms = self._copy_rate()
        self._products: dict[tuple[Product, Kind], float] = {}
        self._attentions: dict[tuple[object, ...], tuple[float, SDPBackend]] = {}

    def floor(self, case: Case) -> Floor:
        """Every kernel alone."""
        shape = case.shape
        prefill, prefill_library = self._attention(self._prefill_queries(case), case, causal=True)
        decode = [self._attention(self._decode_queries(case, width), case, causal=False) for width in case.widths[:-1]]
        return Floor(
            prefill_products=shape.layers * self._layer(case, case.tokens),
            prefill_attention=shape.layers * prefill,
            decode_products=shape.layers * sum(self._layer(case, rows) for rows in case.step_rows),
            decode_attention=shape.layers * sum(time for time, _ in decode),
            head=sum(self.product_ms(product, "bf16") for product in heads(case)),
            elementwise=self._elementwise(case, case.tokens + sum(case.step_rows)),
            backends=(prefill_library.name, *(library.name for _, library in decode)),
            kinds={str(product): self.fastest(product, case.precision) for product in layer_products(case)},
        )

    def continued(self, case: Case, new: int, floor: Floor) -> float:
        """Milliseconds of a batch of which only the last ``new`` tokens of each context are computed, the rest being
        there. ``floor``: of the whole case.
        """
        shape, rows = case.shape, case.batch * new
        queries = self._random(case.batch, shape.kv_heads, new * shape.heads // shape.kv_heads, shape.head_dim)
        attention, _ = self._attention(queries, case, causal=False)
        prefill = shape.layers * (self._layer(case, rows) + attention)
        decode = floor.decode_products + floor.decode_attention + floor.head
        return prefill + decode + self._elementwise(case, rows + sum(case.step_rows))

    def chained(self, case: Case, floor: Floor, runs: int, flattened: Flattened | None = None) -> Timing:
        """The kernels that ``floor`` chose, in an engine's order, in one graph; decode attention is ``flattened``'s."""
        layers = case.shape.layers
        keys, values = self._context(case, layers)
        weights = [[self._random(*size) for size in case.shape.products] for _ in range(layers)]
        queries = [self._prefill_queries(case), *(self._decode_queries(case, width) for width in case.widths[:-1])]

        def passes() -> Iterator[list[Callable[[], Tensor]]]:
            """Of each forward pass, the prefill first, its calls in order."""
            for number, (rows, q, library) in enumerate(zip(_rows(case), queries, floor.backends, strict=True)):
                attention = partial(_attend, q, library=SDPBackend.__members__[library], causal=number == 0)
                prepare = flattened.prepare if flattened and number else lambda k, v, a=attention: partial(a, k, v)
                products = self._layer_calls(rows, weights, case.precision)
                attends = [prepare(k, v) for k, v in zip(keys, values, strict=True)]
                pairs = zip(products, attends, strict=True)
                yield [call for (qkv, *others), attend in pairs for call in (qkv, attend, *others)]

        head_calls = [self._call(product, "bf16") for product in heads(case)]
        chain = [call for calls, head in zip(passes(), head_calls, strict=True) for call in (*calls, head)]

        def work() -> None:
            for call in chain:
                call()

        return graph_ms(work, self.device, runs)

    def fastest(self, product: Product, precision: Precision) -> Kind:
        if precision == "bf16" or not self.fp8:
            return "bf16"
        kinds: tuple[Kind, ...] = ("bf16", "fp8 tensor-wise", "fp8 row-wise")
        return min(kinds, key=lambda kind: self.product_ms(product, kind))

    def product_ms(self, product: Product, kind: Kind) -> float:
        if (product, kind) not in self._products:
            self._products[product, kind] = kernel_ms(self._call(product, kind), self.device)
        return self._products[product, kind]

    def _elementwise(self, case: Case, rows: int) -> float:
        shape = case.shape
        moved = rows * (_HIDDEN_PASSES * shape.hidden + _INNER_PASSES * shape.inner) * self.dtype.itemsize
        return shape.layers * moved / self.copy_bytes_per_ms

    def _layer(self, case: Case, rows: int) -> float:
        products = [(rows, out, inputs) for out, inputs in case.shape.products]
        return sum(self.product_ms(product, self.fastest(product, case.precision)) for product in products)

    def _layer_calls(
        self, rows: int, weights: list[list[Tensor]], precision: Precision
    ) -> list[list[Callable[[], Tensor]]]:
        """The products of every layer; layers share their inputs, as activations lie in the cache of a small batch."""
        inputs = {columns: self._random(rows, columns) for columns in {w.shape[1] for layer in weights for w in layer}}

        def call(weight: Tensor) -> Callable[[], Tensor]:
            out, columns = weight.shape
            kind = self.fastest((rows, out, columns), precision)
            return self._multiply(inputs[columns], weight, kind)

        return [[call(weight) for weight in layer] for layer in weights]

    def _call(self, product: Product, kind: Kind) -> Callable[[], Tensor]:
        rows, out, inputs = product
        return self._multiply(self._random(rows, inputs), self._random(out, inputs), kind)

    def _multiply(self, a: Tensor, b: Tensor, kind: Kind) -> Callable[[], Tensor]:
        """``a @ b.T`` as a call; conversions are done before."""
        if kind == "bf16":
            return partial(F.linear, a, b)
        a, b = F.pad(a, (0, 0, 0, -len(a) % _FP8_ROWS)).to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        shapes = ((), ()) if kind == "fp8 tensor-wise" else ((len(a), 1), (1, len(b)))
        scales = [torch.ones(shape, device=self.device) for shape in shapes]
        return lambda: torch._scaled_mm(  # noqa: SLF001  (torch has no public name for it yet)
            a, b.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16, use_fast_accum=True
        )

    def _attention(self, q: Tensor, case: Case, causal: bool) -> tuple[float, SDPBackend]:
        """Time and name of the fastest library kernel; the same for every precision."""
        key = (tuple(q.shape), case.context, causal)
        if key not in self._attentions:
            self._attentions[key] = self._fastest_attention(q, case, causal)
        return self._attentions[key]

    def _fastest_attention(self, q: Tensor, case: Case, causal: bool) -> tuple[float, SDPBackend]:
        (k,), (v,) = self._context(case, 1)
        cuda = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
        libraries = cuda if self.device.type == "cuda" else (SDPBackend.MATH,)
        times = {}
        for library in libraries:
            with sdpa_kernel(library):  # entered once: its own time is not the kernel's
                attend = partial(F.scaled_dot_product_attention, q, k, v, is_causal=causal, enable_gqa=causal)
                times[library] = kernel_ms(attend, self.device)
        best = min(times, key=lambda library: times[library])
        return times[best], best

    def _prefill_queries(self, case: Case) -> Tensor:
        return self._random(case.batch, case.shape.heads, case.context, case.shape.head_dim)

    def _decode_queries(self, case: Case, width: int) -> Tensor:
        """All beams and query heads of a key head as one row axis."""
        shape = case.shape
        return self._random(case.batch, shape.kv_heads, width * shape.heads // shape.kv_heads, shape.head_dim)

    def _context(self, case: Case, layers: int) -> tuple[Tensor, Tensor]:
        size = (layers, case.batch, case.shape.kv_heads, case.context, case.shape.head_dim)
        return self._random(*size), self._random(*size)

    def _random(self, *size: int) -> Tensor:
        return torch.randn(size, device=self.device, dtype=self.dtype)

    def _copy_rate(self) -> float:
        """Bytes read and written by a large copy in a millisecond."""
        source = torch.empty(_COPY_BYTES[self.device.type], dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / kernel_ms(lambda: target.copy_(source), self.device)


def _attend(q: Tensor, k: Tensor, v: Tensor, library: SDPBackend, causal: bool) -> Tensor:
    with sdpa_kernel(library):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=causal)


def _rows(case: Case) -> tuple[int, ...]:
    return case.tokens, *case.step_rows


def layer_products(case: Case) -> Iterator[Product]:
    for rows in dict.fromkeys(_rows(case)):
        for out, inputs in case.shape.products:
            yield rows, out, inputs


def heads(case: Case) -> list[Product]:
    """Of each level: the last tokens' only at the first. With ``vocab`` scores the whole vocabulary."""
    out = case.shape.vocab if case.score == "vocab" else case.shape.codes
    return [(rows, out, case.shape.hidden) for rows in (case.batch, *case.step_rows)]
