"""One process of the fleet, from both sides: how the parent starts it, and what it runs."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from prometheus_client import Metric

from consumer.fleet.channel import Channel, Question, answering
from consumer.fleet.gpus import VISIBLE, Gpu
from consumer.service.logs import configure_logging
from consumer.service.settings import ServiceSettings
from engine.errors import RecallstreamError

log = logging.getLogger(__name__)


class GpuProcess:
    """A started process that serves ``gpu``. ``settings`` go to it through a pipe, not over the command line."""

    def __init__(self, gpu: Gpu, settings: ServiceSettings) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(
            target=serve_gpu, args=(gpu, settings, theirs), name=f"gpu{gpu.name}", daemon=True
        )
        with _interrupts_blocked():
            self._process.start()
        theirs.close()
        self.pid = self._process.pid
        self.channel = Channel(ours)

    @property
    def sentinel(self) -> int:
        """For ``multiprocessing.connection.wait``: ready once the process has ended."""
        return self._process.sentinel

    @property
    def exit_code(self) -> int | None:
        """None while it runs; the negative signal number if a signal ended it."""
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Release what belongs to a process that has ended, or has just been killed."""
        self._process.join()
        self._process.close()
        self.channel.close()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A Ctrl-C reaches every process of the terminal, and this signal mask is inherited: only the parent gets it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve_gpu(gpu: Gpu, settings: ServiceSettings, connection: "Connection[Any, Any]") -> None:
    """What a process runs: the service, with the pipe to the parent where a lone process has its HTTP port."""
    if gpu.is_cuda:
        os.environ[VISIBLE] = gpu.name  # nothing has loaded CUDA yet
    configure_logging(settings.log, f"gpu{gpu.name}")

    from consumer.service.app import run
    from consumer.service.status import ServiceStatus

    def expose(status: ServiceStatus, drain: Callable[[], None]) -> AbstractContextManager[None]:
        def metrics() -> list[Metric]:
            status.refresh()
            return list(status.registry.collect())

        def health() -> tuple[tuple[str, ...], tuple[str, ...]]:
            return status.unready(), status.faults()

        answers: dict[Question, Callable[[], Any]] = {
            "health": health,
            "status": status.status,
            "metrics": metrics,
            "catalog": status.catalog,
        }
        return answering(connection, answers, drain)

    try:
        run(settings, expose)
    except (RecallstreamError, OSError) as error:
        log.error("%s", error)
        sys.exit(1)
