"""The fleet's policies, with processes that a test ends by hand: starts, restarts, drain, signals, what is shown."""

import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import Pipe

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from consumer.fleet.app import build_fleet_app
from consumer.fleet.channel import Channel, answering
from consumer.fleet.fleet import EXIT_FAILED, EXIT_OK, EXIT_STUCK, RESTART_CAP_S, RESTART_JITTER, STABLE_S, Fleet
from consumer.fleet.gpus import Gpu
from consumer.fleet.status import SILENT_S, FleetStatus
from consumer.service.http import HttpServer
from consumer.service.settings import HttpSettings, ServiceSettings
from tests.consumer.waiting import eventually

SETTINGS = ServiceSettings.model_validate({"engine": {"model": "model"}, "http": {"port": 0}})
GPUS = [Gpu(name, is_cuda=False) for name in ("2", "5")]


class Clock:
    """``step``: seconds that pass with every look at it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class FakeProcess:
    """Answers as a process does; ends when told to by ``end``, ``kill`` or, if it ``obeys``, by a drain."""

    def __init__(self, gpu: Gpu, obeys: bool = True) -> None:
        self.gpu = gpu
        self.pid: int | None = id(self)
        self.exit_code: int | None = None
        self.obeys = obeys
        self.unready: tuple[str, ...] = ()
        self.faults: tuple[str, ...] = ()
        self.registry = CollectorRegistry()
        Gauge("recallstream_ready", "ready", registry=self.registry).set(1)
        self.replies = Counter("recallstream_replies", "replies", ("status",), registry=self.registry)
        self.seconds = Histogram("recallstream_seconds", "seconds", buckets=(1, 2), registry=self.registry)
        ours, self._theirs = Pipe()
        self.channel = Channel(ours)
        self._wake, self._sentinel = Pipe()
        self._hearing = threading.Event()
        self._hearing.set()
        with answering(
            self._theirs,
            {
                "health": self._health,
                "status": lambda: {"gpu": gpu.name, "settings": {}},
                "metrics": lambda: list(self.registry.collect()),
            },
            lambda: self.end(0) if self.obeys else None,
        ):
            pass

    def deaf(self) -> None:
        """Answer nothing from now on."""
        self._hearing.clear()

    def _health(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        self._hearing.wait()
        return self.unready, self.faults

    @property
    def sentinel(self) -> int:
        return self._sentinel.fileno()

    def end(self, code: int) -> None:
        if self.exit_code is None:
            self.exit_code = code
            self._wake.close()

    def kill(self) -> None:
        self.end(-signal.SIGKILL)

    def close(self) -> None:
        self.channel.close()


class Made:
    """A fleet over fake processes on GPUs 2 and 5, the newest of each GPU in ``running``."""

    def __init__(self, obeys: bool = True) -> None:
        self.clock = Clock()
        self.running: dict[str, FakeProcess] = {}
        self.launched = 0
        self.ended_with: list[int] = []
        self.fleet = Fleet(GPUS, self._launch, 20.0, self.clock, self.ended_with.append)
        self.status = FleetStatus(SETTINGS, self.fleet, self.clock)
        self._obeys = obeys

    def turn(self, seconds: float = 1.0) -> None:
        """Let time pass, then one turn of the loop."""
        self.clock.now += seconds
        self.fleet.turn(0)

    def end(self, gpu: str, code: int) -> None:
        self.running[gpu].end(code)
        self.turn(0.0)

    def pause(self) -> float:
        """Seconds from now until GPU 5 is started again."""
        return self.fleet.members[1].restart_at - self.clock.now

    def _launch(self, gpu: Gpu) -> FakeProcess:
        self.launched += 1
        self.running[gpu.name] = FakeProcess(gpu, self._obeys)
        return self.running[gpu.name]


@pytest.fixture
def made() -> Made:
    made = Made()
    made.fleet.start()
    return made


def test_it_is_ready_when_every_process_is(made: Made) -> None:
    assert made.status.unready() == ("GPU 2: starting", "GPU 5: starting")
    made.running["5"].unready = ("no catalog is active",)
    made.turn()
    assert made.status.unready() == ("GPU 5: no catalog is active",)
    made.running["5"].unready = ()
    made.turn()
    assert made.status.unready() == ()


@pytest.mark.parametrize("code", [0, 1, -9])
def test_a_process_that_ends_before_it_was_ready_fails_the_start(made: Made, code: int) -> None:
    made.running["5"].unready = ("the model is loading",)
    made.turn()
    made.end("5", code)
    assert made.fleet.failed
    assert made.fleet.drain() == EXIT_FAILED
    assert made.running["2"].exit_code == EXIT_OK, "the other one drained"
    assert made.launched == 2


def test_later_on_it_is_started_again_while_the_others_serve(made: Made) -> None:
    made.turn()
    made.end("5", 1)
    assert made.status.unready() == ("GPU 5: its process ended with exit code 1 and is started again",)
    assert made.status.faults() == ()
    assert made.launched == 2, "not at once"
    made.turn(made.pause())
    assert made.launched == 3
    assert made.status.unready() == ()
    assert not made.fleet.failed
    assert made.fleet.members[1].restarts == 1
    assert made.fleet.drain() == EXIT_OK


def test_pauses_double_up_to_a_limit_and_begin_anew_after_a_stable_time(made: Made) -> None:
    made.turn()
    pauses = []
    for _ in range(9):
        made.end("5", 1)
        pauses.append(made.pause())
        made.turn(made.pause())
    for n, pause in enumerate(pauses):
        assert pause == pytest.approx(min(2**n, RESTART_CAP_S), rel=RESTART_JITTER + 1e-9)
    made.turn(STABLE_S)
    made.end("5", 1)
    assert made.pause() == pytest.approx(1, rel=RESTART_JITTER + 1e-9)


def test_a_drain_gives_the_worst_exit_code(made: Made) -> None:
    made.turn()
    made.running["2"].end(EXIT_STUCK)
    assert made.fleet.drain() == EXIT_STUCK
    assert made.status.unready()[0] == "draining"


@pytest.mark.parametrize(("code", "result"), [(-signal.SIGTERM, EXIT_OK), (-signal.SIGKILL, EXIT_FAILED)])
def test_a_process_that_a_supervisor_also_told_to_end_has_ended_well(made: Made, code: int, result: int) -> None:
    made.turn()
    made.running["2"].end(code)
    assert made.fleet.drain() == result


def test_a_drain_that_takes_too_long_is_given_up() -> None:
    made = Made(obeys=False)
    made.fleet.start()
    made.turn()
    made.clock.step = 10.0
    assert made.fleet.drain() == EXIT_STUCK


def test_processes_that_end_with_the_parent_s_own_signal_are_no_failed_start() -> None:
    """A supervisor may signal all at once, also before they handle it."""
    made = Made()

    def signals() -> None:
        eventually(lambda: len(made.running) == 2)
        os.kill(os.getpid(), signal.SIGTERM)
        for process in made.running.values():
            process.end(-signal.SIGTERM)

    sender = threading.Thread(target=signals)
    sender.start()
    assert made.fleet.run_until_stopped() == EXIT_OK
    sender.join()
    assert made.launched == 2


def test_the_first_signal_drains_and_the_second_one_kills() -> None:
    made = Made(obeys=False)
    told: list[str] = []

    def signals() -> None:
        eventually(lambda: len(made.running) == 2)
        os.kill(os.getpid(), signal.SIGTERM)
        eventually(lambda: made.fleet.draining)
        told.extend(gpu for gpu, process in made.running.items() if process.exit_code is None)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=signals)
    sender.start()
    made.fleet.run_until_stopped()
    sender.join()
    assert told == ["2", "5"], "the first signal ended none that still had work"
    assert made.ended_with == [128 + signal.SIGINT]
    assert [process.exit_code for process in made.running.values()] == [-signal.SIGKILL] * 2


def test_a_process_that_does_not_answer_is_not_ready_and_becomes_a_fault(made: Made) -> None:
    made.turn()
    assert made.status.faults() == ()
    made.running["2"].deaf()
    made.turn(SILENT_S + 1)
    assert made.status.unready() == (f"GPU 2: no answer for {SILENT_S + 1:.0f} s",)
    assert made.status.faults() == ()
    made.clock.now -= SILENT_S + 1
    made.turn(SETTINGS.http.stalled_after_s + 1)
    assert made.status.faults() == (f"GPU 2: no answer for {SETTINGS.http.stalled_after_s + 1:.0f} s",)


def test_faults_name_their_gpu(made: Made) -> None:
    made.running["5"].faults = ("partition 3 of recall.requests stands still",)
    made.turn()
    assert made.status.faults() == ("GPU 5: partition 3 of recall.requests stands still",)


# --- over HTTP --------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(made: Made) -> Iterator[httpx.Client]:
    made.turn()
    server = HttpServer(HttpSettings(port=0), build_fleet_app(made.status, made.fleet))
    server.start()
    with httpx.Client(base_url=server.url) as client:
        yield client
    server.stop()


def samples(text: str) -> dict[str, dict[str, float]]:
    """{series without the label gpu: {gpu: value}}; every family is there once."""
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    found: dict[str, dict[str, float]] = {}
    for sample in (sample for family in families for sample in family.samples):
        rest = "".join(f" {name}={value}" for name, value in sample.labels.items() if name != "gpu")
        found.setdefault(sample.name + rest, {})[sample.labels["gpu"]] = sample.value
    return found


def test_every_series_carries_its_gpu_and_nothing_is_summed(made: Made, client: httpx.Client) -> None:
    made.running["2"].replies.labels("ok").inc(3)
    made.running["5"].replies.labels("ok").inc(4)
    made.running["5"].seconds.observe(1.5)
    found = samples(client.get("/metrics").text)
    assert found["recallstream_replies_total status=ok"] == {"2": 3, "5": 4}
    assert found["recallstream_seconds_bucket le=2.0"] == {"2": 0, "5": 1}
    assert found["recallstream_ready"] == {"2": 1, "5": 1}
    assert set(samples(client.get("/gpus/5/metrics").text)["recallstream_replies_total status=ok"]) == {"5"}


def test_a_process_that_has_gone_is_not_ready_and_has_no_other_series(made: Made, client: httpx.Client) -> None:
    made.running["2"].replies.labels("ok").inc(3)
    made.end("5", 1)
    found = samples(client.get("/metrics").text)
    assert found["recallstream_ready"] == {"2": 1, "5": 0}
    assert found["recallstream_gpu_restarts_total"] == {"2": 0, "5": 1}
    assert found["recallstream_replies_total status=ok"] == {"2": 3}
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200
    assert client.get("/gpus/5/readyz").status_code == 503
    assert client.get("/gpus/5/status").status_code == 503
    assert client.get("/gpus/2/status").json()["gpu"] == "2"


def test_restarts_do_not_grow_the_number_of_series(made: Made, client: httpx.Client) -> None:
    def series() -> list[tuple[str, str]]:
        found = samples(client.get("/metrics").text)
        return sorted((name, gpu) for name, gpus in found.items() for gpu in gpus)

    before = series()
    for _ in range(20):
        made.end("5", 1)
        made.turn(made.pause() + 1.0)
    assert made.launched == 2 + 20
    assert series() == before


def test_the_status_lists_every_gpu(made: Made, client: httpx.Client) -> None:
    made.end("5", 1)
    status = client.get("/status").json()
    assert status["service"]["ready"] is False
    here, gone = status["gpus"]
    assert (here["gpu"], here["ready"], here["status"]) == ("2", True, {"gpu": "2"})
    assert (gone["gpu"], gone["ready"], gone["status"], gone["last_exit"]) == ("5", False, None, 1)
