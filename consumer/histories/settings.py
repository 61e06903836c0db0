"""Settings of the histories that the service holds for users."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

Store = Literal["off", "write-behind", "write-through"]


class HistorySettings(BaseModel):
    """What is held in the process, and its durable copy in Redis."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: Store = Field(
        "off",
        description="durable copy in Redis; write-through: an event's offset is committed after Redis has it; "
        "write-behind: Redis has it soon after",
    )
    entries: int = Field(100_000, ge=1, description="users whose history is held in the process")
    max_bytes: int = Field(256 << 20, ge=1, description="the same in bytes; the least recently used go first")
    url: SecretStr | None = Field(None, description="Redis of the copy, not a cluster; none: that of the catalog")
    namespace: str = Field(
        "recallstream", pattern=r"^[A-Za-z0-9._-]{1,64}$", description="begins every key; a new one for new topics"
    )
    ttl_s: int = Field(0, ge=0, description="Redis drops a history that nothing changed for so long; 0: never")
    tombstone_s: int = Field(
        604_800, ge=1, description="how long Redis keeps the mark of a user who was forgotten; the topic's retention"
    )
    timeout_s: float = Field(1.0, gt=0, le=60, description="seconds for a connection or an answer of Redis")
    lookup_ms: float = Field(500.0, gt=0, description="a request waits so long for its history, then: need_history")
    write_behind_ms: float = Field(100.0, ge=0, description="delay of write-behind, which gathers a user's events")
    unsaved_records: int = Field(
        10_000, ge=1, description="most records that write-behind may lose; the offsets of more wait for Redis"
    )
