"""``recallstream serve`` as a process of its own, told by environment what to do, as an operator would."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from consumer.service.settings import ENV_PREFIX
from engine.errors import RecallstreamError

READY_S = 120.0
STOP_S = 30.0
_LOG_LINES = 5
_LOG_COLUMNS = 200


class ServiceError(RecallstreamError):
    """The service did not come up, or ended by itself; the message ends with its last log lines."""


class ServiceProcess:
    """Starts on ``start``; ``stop`` is SIGTERM, then SIGKILL. Its output goes to ``log``.

    ``settings`` maps ``SECTION__FIELD`` to its value. Settings of the caller's own environment are not passed on.
    """

    def __init__(self, settings: Mapping[str, object], log: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = log
        values = {**settings, "HTTP__PORT": self.url.rpartition(":")[2]}
        self._environment = {name: text for name, text in os.environ.items() if not name.startswith(ENV_PREFIX)}
        self._environment |= {ENV_PREFIX + name: _text(value) for name, value in values.items()}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "consumer.cli.main", "serve"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops the service itself
            )

    def wait_until_ready(self, timeout: float = READY_S) -> None:
        """Wait for /readyz. Raises ServiceError."""
        deadline = time.monotonic() + timeout
        while not self._is_ready():
            self.check_alive()
            if time.monotonic() > deadline:
                raise ServiceError(f"the service was not ready within {timeout:.0f} s: {self._last_words()}")
            time.sleep(0.05)

    def check_alive(self) -> None:
        """Raises ServiceError if the process has ended."""
        if self._process is None or self._process.poll() is not None:
            code = None if self._process is None else self._process.returncode
            raise ServiceError(f"the service ended with exit code {code}: {self._last_words()}")

    def stop(self, timeout: float = STOP_S) -> int | None:
        """Let it drain and end; returns its exit code, None if it had to be killed or never ran."""
        process = self._process
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2) as answer:  # noqa: S310 - loopback
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return " | ".join(line[:_LOG_COLUMNS] for line in lines[-_LOG_LINES:]) or "it logged nothing"


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict | list | tuple) else str(value)
