"""Settings of the serving loop: batches, admission, deadlines, drains."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class BatchSettings(BaseModel):
    """How requests are gathered for the engine, and how many may be unfinished at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_requests: int = Field(16, ge=1, description="requests of one batch; at most engine.max_batch")
    max_tokens: int = Field(
        16_384,
        ge=1,
        description="context tokens of one batch; a larger request runs alone. More than engine.graph_prefill_tokens "
        "gain next to nothing and make everybody wait longer",
    )
    window_ms: float = Field(
        2.0, ge=0, description="longest wait of a batch's first request for others; an idle engine does not wait"
    )
    max_in_flight: int = Field(1_024, ge=1, description="requests read but not yet confirmed; more are not read")
    max_in_flight_bytes: int = Field(64 << 20, ge=1, description="the same in bytes of their records and ids")
    max_span: int = Field(65_536, ge=1, description="offsets of one partition that may wait for its oldest request")
    resume_at: float = Field(0.5, gt=0, le=1, description="share of the bounds at which reading goes on")
    pause_after_s: float = Field(1.0, ge=0, description="a full queue for so long pauses the partitions at the broker")
    bad_share_limit: float = Field(
        0.5, gt=0, le=1, description="a larger share of bad records ends the process: the deploy is bad; 1: no limit"
    )
    bad_window_records: int = Field(200, ge=1, description="the least records that this share is taken of")
    bad_window_s: float = Field(60.0, gt=0, description="it is taken of the last so many seconds, if they hold as many")
    repeat_entries: int = Field(
        4_096, ge=0, description="replies kept, so that a request that comes again needs no engine; 0: none"
    )
    repeat_bytes: int = Field(32 << 20, ge=0, description="the same in bytes")
    repeat_age_s: float = Field(300.0, gt=0, description="how long a reply is kept at most")
    commit_interval_ms: float = Field(100.0, ge=0, description="time between two offset commits")
    drain_s: float = Field(20.0, gt=0, description="time to finish what was read when told to stop")
    revoke_drain_s: float = Field(5.0, gt=0, description="time to finish a partition's requests when it is taken away")
    close_s: float = Field(10.0, gt=0, description="time to leave the group; after it the process is ended hard")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_requests > self.max_in_flight:
            raise ValueError("max_requests must not be above max_in_flight")
        return self
