"""How much of the device's memory becomes ContextKV, and what is said where it does not do."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.errors import ModelError
from engine.model.spec import ModelSpec
from engine.runtime.cost import Cost
from engine.settings import EngineSettings

CPU_PAGES = 2048


@contextmanager
def room_for(what: str, advice: str) -> Iterator[None]:
    """Memory that runs out inside is a ModelError with ``advice``."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        reason = str(error).partition("\n")[0].partition(". GPU ")[0]
        raise ModelError(f"no memory for {what}: {advice}: {reason}") from error


def context_pages(spec: ModelSpec, settings: EngineSettings, device: torch.device, dtype: torch.dtype) -> int:
    """Pages of the pool. On CUDA: a share of what is free now, once the stages and the graphs have theirs.

    Call it when weights and beams are loaded. Raises ModelError if nothing is left.
    """
    if settings.context_pages is not None:
        return settings.context_pages
    if device.type != "cuda":
        return CPU_PAGES
    cost = Cost(spec.decoder, spec.level_sizes, dtype.itemsize)
    free, _ = torch.cuda.mem_get_info(device)
    return pages_in(free, cost, settings)


def pages_in(free: int, cost: Cost, settings: EngineSettings) -> int:
    """Pages that fit ``free`` bytes beside what a batch at the limits and the graphs take. Raises ModelError."""
    reserved = cost.work_bytes(settings) + cost.graph_bytes(settings)
    pages = int(settings.memory_fraction * (free - reserved)) // cost.page_bytes
    if pages < 1:
        raise ModelError(
            f"no device memory is left for contexts: {free >> 20} MiB are free and a batch takes {reserved >> 20} MiB; "
            "lower max_batch_tokens, max_batch_rows or max_graphs"
        )
    return pages
