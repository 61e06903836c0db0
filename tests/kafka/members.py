"""``recallstream serve`` as processes that start quickly: forked from one that has imported everything."""

import json
import multiprocessing
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from consumer.cli.main import main
from deploy.kafka.install import free_port

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["engine.recall_engine", "catalog_sync.watcher", "consumer.serving.service", "consumer.service.app"]
)
_NOT_STARTED_S = 90.0


@dataclass(frozen=True, slots=True)
class Stages:
    """Where a member's requests stand."""

    queued: int
    running: int
    awaiting_confirmation: int

    @property
    def several(self) -> bool:
        return sum(count > 0 for count in (self.queued, self.running, self.awaiting_confirmation)) >= 2


class ServeProcess:
    """One ``serve`` with these flags, its log in ``log``."""

    def __init__(self, flags: Sequence[str], log: Path) -> None:
        self.log = log
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        self.process: BaseProcess = _CONTEXT.Process(
            target=_serve, args=(["serve", f"--http.port={port}", *flags], str(log)), daemon=True
        )
        self.process.start()
        self._born = time.monotonic()

    def ready(self) -> bool:
        """Raises AssertionError if it has ended, or takes too long to get ready for the first time."""
        assert self.process.exitcode is None, self.last_words()
        status = self._get("/readyz")
        assert status is not None or time.monotonic() - self._born < _NOT_STARTED_S, self.last_words()
        return status is not None and not status["reasons"]

    def owned(self) -> int:
        return len(self.partitions())

    def partitions(self) -> list[int]:
        """The numbers of those that it owns."""
        status = self._get("/status")
        return [each["partition"] for each in status["stream"]["partitions"]] if status else []

    def faults(self) -> list[str]:
        """Why its liveness fails."""
        health = self._get("/healthz")
        return ["no answer"] if health is None else list(health["reasons"])

    def lag(self) -> tuple[int | None, float | None]:
        """In messages and in seconds."""
        status = self._get("/status")
        return (status["stream"]["lag_messages"], status["stream"]["lag_seconds"]) if status else (None, None)

    def catalog(self) -> dict[str, Any]:
        """What it says of its catalog; empty if it does not answer."""
        status = self._get("/status")
        return status["catalog"] if status else {}

    def stages(self) -> Stages | None:
        """None if it does not answer."""
        if (status := self._get("/status")) is None:
            return None
        stream = status["stream"]
        queued, running = stream["queued"], stream["running"]
        return Stages(queued, running, max(0, stream["in_flight"] - queued - running))

    def ended(self, timeout: float) -> int | None:
        """Wait for the exit code; None if it has not ended in time."""
        self.process.join(timeout)
        return self.process.exitcode

    def last_words(self) -> str:
        return f"exit code {self.process.exitcode}: " + self.log.read_text(errors="replace")[-2000:]

    def _get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(self._url + path, timeout=2) as answer:  # noqa: S310 - loopback
                return json.load(answer)
        except urllib.error.HTTPError as refusal:
            with refusal:
                return json.load(refusal)
        except OSError:
            return None


def _serve(arguments: list[str], log: str) -> None:
    sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(sink, standard)
    sys.exit(main(arguments))
