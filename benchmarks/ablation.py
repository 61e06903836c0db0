"""What each part of the engine is worth: one of them off at a time, on one case."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.cases import Case
from kernels import backend
from kernels.selection import expand_select as twin


@dataclass(frozen=True, slots=True)
class Ablation:
    """``settings``: of an engine without the part; ``patch``: held while that engine is made and runs.

    ``pipelined``: the part shows with two batches in flight only.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    patch: Callable[[], AbstractContextManager[object]] = nullcontext
    change: Callable[[Case], Case] = lambda case: case
    pipelined: bool = False


def ablations(cuda: bool) -> Iterator[Ablation]:
    """Those that this device has."""
    yield Ablation("the level head", change=lambda case: replace(case, score="vocab"))
    if cuda:
        yield Ablation("graphs", {"graphs": False})
        yield Ablation("the prefill graph", {"graph_prefill_tokens": 0})
        yield Ablation("a stream for prefill", {"overlap": False}, pipelined=True)
        yield Ablation("early end", patch=_without_early_end)
        yield Ablation("fused select and graphs", {"graphs": False}, patch=_without_fused_select)


@contextmanager
def _replaced(kernel: Callable[..., Any]) -> Iterator[None]:
    kept = backend.expand_select
    backend.expand_select = kernel
    try:
        yield
    finally:
        backend.expand_select = kept


def _without_early_end() -> AbstractContextManager[None]:
    kernel = backend.expand_select
    return _replaced(lambda *args, **more: kernel(*args, **more, early_end=False))  # type: ignore[call-arg]  # on CUDA


def _without_fused_select() -> AbstractContextManager[None]:
    return _replaced(twin.expand_select)
