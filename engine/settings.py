"""Settings of the engine: what is loaded, where it runs, what a request may ask for."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

PAGE_TOKENS = 128
"""Tokens of one ContextKV page; also the key block of the attention kernels, so paging costs nothing there."""


class EngineSettings(BaseModel):
    """Validated settings; messages name the field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Path = Field(description="model directory: a Hugging Face checkpoint plus sid.json")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes CUDA where there is one")
    precision: Literal["auto", "fp32", "bf16", "fp8"] = Field(
        "auto",
        description="auto: fp32 on the CPU, bf16 on CUDA; fp8: the layers' weights and activations in float8, "
        "the rest as auto",
    )
    context_pages: int | None = Field(
        None, ge=1, description=f"ContextKV pages in the pool, {PAGE_TOKENS} tokens each; none: see memory_fraction"
    )
    memory_fraction: float = Field(
        0.9, gt=0, lt=1, description="share for ContextKV of the memory that weights, beams and graphs leave on CUDA"
    )
    sessions: float = Field(
        1.0,
        ge=0,
        le=1,
        description="share of the ContextKV pages that users' contexts may keep between their requests; they give "
        "way to any request that needs pages; 0 keeps none",
    )
    sessions_host_bytes: int = Field(
        0,
        ge=0,
        description="host memory for copies of sessions, which outlive their pages on the device; 0: none",
    )
    max_batch: int = Field(16, ge=1, le=1024, description="requests of one batch")
    max_batch_tokens: int = Field(
        65_536, ge=1, description="new tokens of one batch; context tokens of any one request"
    )
    max_batch_rows: int = Field(4096, ge=1, description="requests of one batch times the widest beam of them")
    max_width: int = Field(1024, ge=1, le=65536, description="widest beam that a request may ask for")
    max_top_k: int = Field(1000, ge=1, description="most items that a request may ask for")
    threads: int | None = Field(None, ge=1, description="CPU threads of torch; none leaves torch's own choice")
    graphs: bool = Field(True, description="capture CUDA graphs at start, for what batches are rounded up to")
    max_graphs: int = Field(256, ge=0, description="most graphs; a batch that finds none runs eagerly")
    graph_prefill_tokens: int = Field(16_384, ge=0, description="prefills of more tokens than this run eagerly")
    graph_beams: tuple[tuple[int, ...], ...] = Field(
        (), description="beam widths by level that get graphs of their own, beside those of one width"
    )
    graph_vocab: bool = Field(False, description="capture graphs for the score vocab, too")
    overlap: bool = Field(True, description="prefill the next batch while one decodes, on a stream of its own")

    @model_validator(mode="after")
    def _widest_beam_fits(self) -> Self:
        if self.max_width > self.max_batch_rows:
            raise ValueError("max_width must not be above max_batch_rows")
        return self
