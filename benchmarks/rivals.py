"""What a user has without an engine: ``transformers`` beam search, unconstrained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import Case
from benchmarks.measure import Timing, wall_ms


def load_transformers(model: Path, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    return loaded.to(device).eval()


def transformers_ms(model: Any, case: Case, runs: int) -> Timing:
    """Beam search with ``generate``. Raises torch.OutOfMemoryError."""
    call = _generate(model, case)
    call()
    return wall_ms(call, runs)


def _generate(model: Any, case: Case) -> Callable[[], None]:
    tokens = torch.randint(case.shape.token_bases[0], case.shape.vocab, (case.batch, case.context), device=model.device)
    mask = torch.ones_like(tokens)

    @torch.inference_mode()
    def call() -> None:
        model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=case.shape.levels,
            num_beams=case.width,
            num_return_sequences=case.width,
            do_sample=False,
            length_penalty=0.0,
            pad_token_id=0,
        )
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)

    return call
