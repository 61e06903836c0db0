"""Settings of the catalog's way from Redis to the engine."""

import os
import socket
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr


def default_instance() -> str:
    """A name for this process that operators recognise."""
    return f"{socket.gethostname()}-{os.getpid()}"


class CatalogSettings(BaseModel):
    """Validated settings; messages name the field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379/0"), description="Redis; rediss:// for TLS; may hold a password"
    )
    namespace: str = Field(
        "recallstream", pattern=r"^[A-Za-z0-9._-]{1,64}$", description="common part of all keys, one hash slot"
    )
    instance: str = Field(
        default_factory=default_instance, pattern=r"^[^\s{}:]{1,128}$", description="name of this process in acks"
    )
    poll_seconds: float = Field(10.0, gt=0, le=3600, description="the pointer is read at least this often (jittered)")
    poll_jitter: float = Field(0.2, ge=0, lt=1, description="share of the poll period by which it varies")
    socket_timeout: float = Field(2.0, gt=0, le=60, description="seconds for a connection or an answer of Redis")
    retry_seconds: float = Field(0.1, gt=0, description="first wait after a failure; doubles up to the poll period")
    health_check_seconds: int = Field(
        2, ge=1, description="silence before a PING; unanswered ones rebuild a subscription"
    )
    disk: Path | None = Field(
        None, description="directory for a last-good copy, used when Redis has no catalog at start"
    )
