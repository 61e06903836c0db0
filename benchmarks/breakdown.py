"""Where the time of one batch goes on a CUDA device, kernel family by family, prefill and each level apart."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

FAMILIES = {
    "prefill attention": r"attend_causal|join_prompts",
    "decode attention": r"attend_beams|^(merge|join)$",
    "selection": r"^(expand|sift|refine|rank|resolve)$",
    "norm, rotary, gate, quantise": r"^(normalise|rotate_and_write|gate|quantise_row)$",
    "products": r"gemm|gemv|nvjet|cutlass|cublas|splitk|^multiply|^join_sums$",
    "copies": r"^mem(cpy|set)",
}
OTHER = "other"
IDLE = "between kernels"
_SELECTION_BEGINS = "expand"


@dataclass(frozen=True, slots=True)
class Kernel:
    """Microseconds on the device's clock."""

    name: str
    start: float
    end: float


def profile(call: Callable[[], object]) -> list[Kernel]:
    """The kernels of one call, in order of their start."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        call()
        torch.cuda.synchronize()
    found = [
        Kernel(event.name, event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type.name == "CUDA"
    ]
    return sorted(found, key=lambda kernel: kernel.start)


def breakdown(kernels: Sequence[Kernel]) -> dict[str, dict[str, float]]:
    """Milliseconds by phase and family. A level begins with its selection; what is before the first is the prefill.

    Kernels of one stream do not overlap; what lies between them is ``IDLE``, counted where the later one belongs.
    """
    phases: dict[str, dict[str, float]] = {}
    level, last_end = 0, None
    for kernel in kernels:
        level += kernel.name == _SELECTION_BEGINS
        phase = phases.setdefault(f"level {level}" if level else "prefill", {})
        _add(phase, family(kernel.name), kernel.end - kernel.start)
        if last_end is not None:
            _add(phase, IDLE, max(0.0, kernel.start - last_end))
        last_end = kernel.end if last_end is None else max(last_end, kernel.end)
    return {name: {part: round(ms, 4) for part, ms in phase.items()} for name, phase in phases.items()}


def family(name: str) -> str:
    for each, pattern in FAMILIES.items():
        if re.search(pattern, name, re.IGNORECASE):
            return each
    return OTHER


def _add(phase: dict[str, float], part: str, microseconds: float) -> None:
    phase[part] = phase.get(part, 0.0) + microseconds / 1e3
