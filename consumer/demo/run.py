"""Sets the demo's stage: broker, Redis, catalog, service; plays the scenario; takes all of it down again."""

import asyncio
import logging
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import SecretStr
from rich.console import Console

from catalog_sync.embedded import EmbeddedRedis
from catalog_sync.settings import CatalogSettings
from consumer.client import RecallClient
from consumer.demo.catalog_owner import CatalogOwner
from consumer.demo.checks import Check, check_stopped
from consumer.demo.films import Release, film_release
from consumer.demo.movielens import MovieLens, find_movielens, load_movielens
from consumer.demo.scenario import Scenario
from consumer.demo.screen import Screen
from consumer.demo.service_process import ServiceProcess
from consumer.demo.traffic import TOP_K, HistorySender
from consumer.stream.mock_cluster import CLIENT_SETTINGS, MockCluster
from consumer.stream.settings import KafkaSettings

MODEL = Path(__file__).parent / "model"
INSTANCE = "demo"
PARTITIONS = 2
WIDTH = 50
TIMEOUT_S = 30.0
ALIVE_CHECK_S = 0.5
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """``movielens``: directory of the data files; None finds them in the installed package."""

    users: int = 300
    keep: bool = False
    model: Path = MODEL
    movielens: Path | None = None


def run_demo(options: DemoOptions, console: Console) -> bool:
    """Run all of it; True if every check held. Raises RecallstreamError if something does not start."""
    started = time.perf_counter()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: with everything taken down
    logging.getLogger("consumer.stream").addHandler(logging.NullHandler())  # a client's trouble is in the checks
    screen = Screen(console)
    with ExitStack() as stage:
        screen.title("Setting up")
        with screen.step("MovieLens-1M read, catalog built"):
            data = load_movielens(options.movielens or find_movielens())
            base = film_release(data, options.model, "all films")
        kafka, owner, service = _start(stage, options, base, screen)
        screen.line(f"status page: {service.url}")
        checks = asyncio.run(_play(options, data, base, kafka, owner, service, screen))
        if not options.keep:
            with screen.step("the service drains and stops"):
                checks.append(check_stopped(service.stop()))
        screen.summary(checks, time.perf_counter() - started)
        if options.keep:
            _wait_for_interrupt(screen, service, kafka)
    return all(check.passed for check in checks)


def _start(
    stage: ExitStack, options: DemoOptions, base: Release, screen: Screen
) -> tuple[KafkaSettings, CatalogOwner, ServiceProcess]:
    log = Path(stage.enter_context(tempfile.TemporaryDirectory(prefix="recallstream-demo-"))) / "service.log"
    with screen.step("embedded broker and Redis started, catalog published"):
        kafka = KafkaSettings(group_protocol="classic", consumer_options=dict(CLIENT_SETTINGS))
        topics = {kafka.request_topic: PARTITIONS, kafka.reply_topic: 1, kafka.dead_letter_topic: 1}
        broker = stage.enter_context(MockCluster(topics))
        kafka = kafka.model_copy(update={"bootstrap_servers": broker.bootstrap_servers})
        with interrupts_held():
            redis = stage.enter_context(EmbeddedRedis())
        catalog = CatalogSettings(url=SecretStr(redis.url))
        owner = stage.enter_context(CatalogOwner(catalog, INSTANCE))
        owner.publish(base)
    with screen.step("service started as its own process, ready"):
        settings = {
            "KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "KAFKA__GROUP_PROTOCOL": kafka.group_protocol,
            "KAFKA__CONSUMER_OPTIONS": kafka.consumer_options,
            "CATALOG__URL": redis.url,
            "CATALOG__INSTANCE": INSTANCE,
            "ENGINE__MODEL": options.model,
            "ENGINE__DEVICE": "cpu",
            "ENGINE__CONTEXT_PAGES": 256,
            "RECALL__TOP_K": TOP_K,
            "RECALL__WIDTH": WIDTH,
        }
        with interrupts_held():
            service = stage.enter_context(ServiceProcess(settings, log))
        service.wait_until_ready()
    return kafka, owner, service


@contextmanager
def interrupts_held() -> Iterator[None]:
    """SIGINT and SIGTERM take effect at the end of the block: in the middle of a Popen they would leave its process."""
    held: list[int] = []
    before = {number: signal.signal(number, lambda number, _: held.append(number)) for number in _INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])


async def _play(
    options: DemoOptions,
    data: MovieLens,
    base: Release,
    kafka: KafkaSettings,
    owner: CatalogOwner,
    service: ServiceProcess,
    screen: Screen,
) -> list[Check]:
    """The scenario's checks. Raises ServiceError as soon as the service is gone."""
    users = np.unique(np.linspace(0, data.users - 1, min(options.users, data.users)).astype(int)).tolist()
    async with RecallClient(kafka) as client:
        send = HistorySender(client, data, TIMEOUT_S)
        story = asyncio.create_task(Scenario(data, options.model, base, users, owner, send, screen).play())
        try:
            while not story.done():
                await asyncio.wait([story], timeout=ALIVE_CHECK_S)
                service.check_alive()
            return await story
        finally:
            story.cancel()


def _wait_for_interrupt(screen: Screen, service: ServiceProcess, kafka: KafkaSettings) -> None:
    screen.line(f"still serving: status page {service.url}, Kafka {kafka.bootstrap_servers}; Ctrl-C ends it")
    screen.line("ask it, with .venv/bin on the path:")
    screen.command(f"recallstream send --bootstrap {kafka.bootstrap_servers} --history 1,260,1196 --fields title")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        screen.line("stopping")
