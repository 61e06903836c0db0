"""Settings of the catalog's way from Redis to the engine."""

import os
import socket
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from catalog_sync.activation_guard import GuardPolicy


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
    group: str | None = Field(
        None, pattern=r"^[^\s{}:]{1,128}$", description="whose pin to obey; serve takes kafka.group_id if there is none"
    )
    canary_seconds: float = Field(30.0, gt=0, le=3600, description="longest wait for the answers to canary requests")
    guard_requests: int = Field(
        200, ge=0, description="answers of a new version, and of those before, to judge it by; 0 never rolls back"
    )
    guard_seconds: float = Field(300.0, ge=0, description="how long a new version is watched, at least")
    guard_ratio: float = Field(
        3.0, ge=1, description="a version whose share of errors or empty answers grew by this factor is rolled back ..."
    )
    guard_bound: float = Field(0.05, gt=0, le=1, description="... if that share is at least so high, too")
    trusted_keys: tuple[Path, ...] = Field(
        (), description="PEM files of Ed25519 public keys; with any, only manifests signed by one of them are served"
    )
    tls_ca: Path | None = Field(None, description="PEM file of the CAs that Redis's certificate is checked against")
    tls_certificate: Path | None = Field(None, description="PEM file of this client's certificate, where Redis asks")
    tls_key: Path | None = Field(None, description="PEM file of that certificate's key")

    @property
    def guard(self) -> GuardPolicy:
        """What the answers of a new version are measured by."""
        return GuardPolicy(self.guard_requests, self.guard_seconds, self.guard_ratio, self.guard_bound)
