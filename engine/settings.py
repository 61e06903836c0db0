"""Settings of the engine: what is loaded, where it runs, what a request may ask for."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

PAGE_TOKENS = 128
"""Tokens of one ContextKV page; also the key block of the attention kernels, so paging costs nothing there."""


class EngineSettings(BaseModel):
    """Validated settings; messages name the field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Path = Field(description="model directory: a Hugging Face checkpoint plus sid.json")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes CUDA where there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: float32 on the CPU, bfloat16 on CUDA"
    )
    context_pages: int = Field(2048, ge=1, description=f"ContextKV pages in the pool, {PAGE_TOKENS} tokens each")
    max_batch: int = Field(16, ge=1, le=1024, description="requests of one batch")
    max_width: int = Field(1024, ge=1, le=65536, description="widest beam that a request may ask for")
    max_top_k: int = Field(1000, ge=1, description="most items that a request may ask for")
    threads: int | None = Field(None, ge=1, description="CPU threads of torch; none leaves torch's own choice")
