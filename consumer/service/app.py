"""The service as a process: what starts when, what is waited for, and how it ends."""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from catalog_sync.settings import CatalogSettings
from consumer.service import garbage
from consumer.service.http import HttpServer, build_app
from consumer.service.settings import ServiceSettings, changed
from consumer.service.status import ServiceStatus
from consumer.version import recallstream_version
from engine.errors import ModelError, RecallstreamError

if TYPE_CHECKING:
    from catalog_sync.watcher import Watcher
    from consumer.service.tracing import OpenTelemetryTracer
    from consumer.serving.errands import Errands
    from consumer.serving.service import ServingLoop
    from engine.model.spec import ModelSpec
    from engine.recall_engine import RecallEngine

WARM_UP_TOKENS = 256
WARM_UP_BATCHES = (1, 2)
CATALOG_POLL_S = 0.05

Expose = Callable[[ServiceStatus, Callable[[], None]], AbstractContextManager[None]]
"""Makes the status visible outside the process; may call its second argument, from any thread, to begin the drain."""

log = logging.getLogger(__name__)


def check(settings: ServiceSettings) -> None:
    """Read the model directory's description. Raises ModelError."""
    spec = _checked_model(settings)
    log.info("settings and model directory are in order: model %s, %d SID levels", spec.id, len(spec.levels))


def serve(settings: ServiceSettings) -> None:
    """Serve, with the endpoints of ``settings.http``. See ``run``; does not return."""

    @contextmanager
    def endpoints(status: ServiceStatus, _drain: Callable[[], None]) -> Iterator[None]:
        server = HttpServer(settings.http, build_app(status))
        try:
            server.start()
            log.info("status page at %s", server.url)
            yield
        finally:
            server.stop()

    run(settings, endpoints)


def run(settings: ServiceSettings, expose: Expose) -> NoReturn:
    """Serve until SIGTERM, SIGINT or a drain, then end the process with its exit code. From the main thread.

    Raises RecallstreamError or OSError if the start fails.
    """
    log.info("recallstream %s, settings beside the defaults: %s", recallstream_version(), json.dumps(changed(settings)))
    spec = _checked_model(settings)  # takes milliseconds; what follows takes seconds
    status = ServiceStatus(settings)
    status.model = spec.id
    drain: Callable[[], None] = partial(os.kill, os.getpid(), signal.SIGTERM)
    with ExitStack() as running:
        # Until the serving loop takes the signals over there is nothing to drain: unwind and go.
        running.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)))
        running.enter_context(expose(status, lambda: drain()))

        tracer = tracer_of(settings)
        if tracer is not None:
            running.callback(tracer.close)

        # The endpoints answer while these take their seconds.
        from catalog_sync.fleet_view import FleetView
        from catalog_sync.watcher import Watcher
        from consumer.serving.canaries import CanaryRunner
        from consumer.serving.errands import Errands
        from engine.recall_engine import RecallEngine

        engine = RecallEngine(settings.engine)
        status.engine = engine
        log.info("model %s is loaded on %s as %s", engine.spec.id, engine.device, engine.dtype)

        status.starting = "waiting for the first catalog"
        errands, levels = Errands(), len(engine.spec.levels)
        canaries = CanaryRunner(errands.ask, settings.recall, settings.wire, levels, settings.catalog.canary_seconds)
        catalog = _obeying_its_group(settings)
        status.fleet = running.enter_context(closing(FleetView(catalog, engine.spec.id)))
        watcher = running.enter_context(Watcher(catalog, engine.catalogs, canaries))
        status.watcher = watcher
        _wait_for_catalog(engine, watcher, errands)
        status.starting = "the engine is warming up"
        _warm_up(engine, settings)

        loop = _serving_loop(settings, engine, watcher, errands, status, tracer)
        garbage.settle()
        status.serving = loop
        drain = loop.drain
        loop.start()
        status.starting = None
        code = loop.run_until_stopped()
    _end_process(code)


def _end_process(code: int) -> NoReturn:
    """At once, now that all is closed. Native threads of the libraries outlive that, and the interpreter's own end has
    crashed under them (signal 11 instead of the exit code, on a loaded machine).
    """
    logging.shutdown()
    with suppress(OSError):  # a reader that has gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def tracer_of(settings: ServiceSettings) -> "OpenTelemetryTracer | None":
    """None unless spans are asked for. Raises RecallstreamError if the extra is not installed."""
    if not settings.tracing.enabled:
        return None
    try:
        from consumer.service.tracing import OpenTelemetryTracer
    except ModuleNotFoundError as error:
        raise RecallstreamError(f"tracing.enabled needs {error.name}: pip install 'recallstream[tracing]'") from error
    return OpenTelemetryTracer.exporting(settings.tracing, settings.kafka.group_id)


def _serving_loop(
    settings: ServiceSettings,
    engine: "RecallEngine",
    watcher: "Watcher",
    errands: "Errands",
    status: ServiceStatus,
    tracer: "OpenTelemetryTracer | None",
) -> "ServingLoop":
    from consumer.histories.items import Cap
    from consumer.histories.redis_store import store_of
    from consumer.serving.prior import prior_of_engine
    from consumer.serving.service import ServingLoop

    cap = Cap(engine.spec.max_history_items, engine.spec.history_drop)
    return ServingLoop(
        engine,
        kafka=settings.kafka,
        batch=settings.batch,
        limits=settings.wire,
        defaults=settings.recall,
        load=settings.load,
        prior=prior_of_engine(engine),
        catalogs=engine.catalogs,
        active_catalog=lambda: engine.catalogs.active,
        histories=settings.histories,
        store=store_of(settings.histories, settings.catalog, cap),
        errands=errands,
        answered=watcher.observe,
        observer=status.observer,
        tracer=tracer,
    )


def _checked_model(settings: ServiceSettings) -> "ModelSpec":
    """What the model directory says of itself, without its weights. Raises ModelError."""
    from engine.model.spec import ModelSpec

    spec = ModelSpec.load(settings.engine.model)
    for name, defaults in settings.recall_defaults().items():
        if defaults.template not in spec.prompts:
            known = ", ".join(spec.prompts)
            raise ModelError(f"{name}.template: model {spec.id} has no prompt {defaults.template!r}, only {known}")
    return spec


def _obeying_its_group(settings: ServiceSettings) -> CatalogSettings:
    """A pin is for a consumer group: Kafka's, unless the settings name another."""
    group = settings.catalog.group or settings.kafka.group_id
    return settings.catalog.model_copy(update={"group": group})


def _wait_for_catalog(engine: "RecallEngine", watcher: "Watcher", errands: "Errands") -> None:
    """Nothing is read from Kafka before there is a catalog to answer from; its canaries are answered here."""
    from consumer.serving.recaller import Attempt

    said = None
    while engine.catalogs.active is None:
        if errand := errands.take():
            errand.answers.set_result(Attempt(engine, errand.requests, lambda _: None).answers())
            continue
        why = watcher.snapshot().error
        if why is not None and why != said:
            log.warning("waiting for the first catalog: %s", why)
            said = why
        time.sleep(CATALOG_POLL_S)


def _warm_up(engine: "RecallEngine", settings: ServiceSettings) -> None:
    """Capture graphs, then run the default beam: the first request finds kernels compiled and memory allocated."""
    import numpy as np

    from engine.errors import RequestError
    from engine.request import BeamPolicy, RecallRequest

    begin = time.monotonic()
    engine.warm_up()
    size = min(WARM_UP_TOKENS, engine.spec.max_context_tokens)
    width = max(settings.recall.width, settings.recall.top_k)
    request = RecallRequest(
        beam=BeamPolicy((width,) * len(engine.spec.levels)),
        top_k=settings.recall.top_k,
        tokens=np.full(size, engine.spec.levels[0].token_base, dtype=np.int32),
    )
    for batch in WARM_UP_BATCHES:
        for answer in engine.recall([request] * batch):
            if isinstance(answer, RequestError):
                raise answer
    log.info("the engine is warm after %.1f s", time.monotonic() - begin)
