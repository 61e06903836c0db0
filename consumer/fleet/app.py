"""``serve --gpus``: the parent process put together."""

import json
import logging
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from starlette.applications import Starlette
from starlette.routing import Mount

from consumer.fleet.fleet import Fleet
from consumer.fleet.gpus import Gpu
from consumer.fleet.process import GpuProcess
from consumer.fleet.status import FleetStatus, MemberStatus
from consumer.service.http import HttpServer, build_app
from consumer.service.settings import ServiceSettings, changed
from consumer.version import recallstream_version

log = logging.getLogger(__name__)


def serve_fleet(settings: ServiceSettings, gpus: Sequence[Gpu]) -> None:
    """Serve on ``gpus`` until SIGTERM, SIGINT or a failed start; SystemExit carries the exit code unless it is 0.

    Raises OSError if the HTTP port is in use.
    """
    log.info("recallstream %s, settings beside the defaults: %s", recallstream_version(), json.dumps(changed(settings)))
    own = {gpu: gpu.settings(settings) for gpu in gpus}
    fleet = Fleet(gpus, lambda gpu: GpuProcess(gpu, own[gpu]), settings.batch.drain_s + settings.batch.close_s)
    with ExitStack() as running:
        server = HttpServer(settings.http, build_fleet_app(FleetStatus(settings, fleet), fleet))
        running.callback(server.stop)
        server.start()
        log.info("status page at %s", server.url)
        code = fleet.run_until_stopped()
    if code:
        sys.exit(code)


def build_fleet_app(status: FleetStatus, fleet: Fleet) -> Starlette:
    """The fleet's endpoints, and those of each process below /gpus/NAME."""
    members = [
        Mount(f"/gpus/{member.gpu.name}", build_app(MemberStatus(fleet, index)))
        for index, member in enumerate(fleet.members)
    ]
    return build_app(status, "fleet.html", members)
