"""The demo as a user starts it, over a small synthetic data set in MovieLens' form."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from catalog_sync import blob
from consumer.cli.main import main
from consumer.demo.films import film_release
from consumer.demo.movielens import load_movielens
from consumer.demo.run import MODEL, WIDTH
from engine.recall_engine import RecallEngine
from engine.request import BeamPolicy, RecallRequest, RecallResult
from engine.settings import EngineSettings
from tests.consumer.film_files import write_film_files
from tests.consumer.waiting import eventually

FILMS = 3883
USERS = 24


@pytest.fixture(scope="module")
def movielens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random short histories, each continued by what the model itself recalls first, so that recall has to be right."""
    rng = np.random.default_rng(5)
    histories = {f"u{user}": rng.choice(FILMS, 8, replace=False) + 1 for user in range(USERS)}
    directory = write_film_files(
        tmp_path_factory.mktemp("films"), FILMS, {user: ids.tolist() for user, ids in histories.items()}
    )
    catalog = blob.decode(film_release(load_movielens(directory), MODEL, "all films").blob)
    engine = RecallEngine(EngineSettings(model=MODEL, device="cpu", context_pages=USERS, max_batch=USERS))
    engine.catalogs.stage(catalog)
    engine.catalogs.activate(catalog.version)
    beam = BeamPolicy((WIDTH,) * len(engine.spec.levels))
    answers = engine.recall([RecallRequest(beam, 1, history=ids, exclude=ids) for ids in histories.values()])
    nexts = [int(answer.items[0]) for answer in answers if isinstance(answer, RecallResult)]
    continued = {user: [*ids.tolist(), film] for (user, ids), film in zip(histories.items(), nexts, strict=True)}
    return write_film_files(directory, FILMS, continued)


@contextmanager
def running_demo(movielens: Path, log: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "consumer.cli.main", "demo", f"--movielens={movielens}", f"--users={USERS}"]
    with log.open("wb") as output:
        demo = subprocess.Popen([*command, *flags], stdout=output, stderr=output, start_new_session=True)
    try:
        yield demo
    finally:
        demo.kill()
        demo.wait()


def test_every_check_holds_and_the_exit_code_says_so(movielens: Path, tmp_path: Path) -> None:
    with running_demo(movielens, tmp_path / "log") as demo:
        code = demo.wait(100)
    shown = (tmp_path / "log").read_text()
    assert code == 0, shown
    assert "everything held" in shown
    assert "HR@10 1.000" in shown
    assert "checksum" in shown
    assert "Traceback" not in shown


def test_kept_running_it_ends_on_sigterm_with_all_its_processes(movielens: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_demo(movielens, log, "--keep") as demo:
        eventually(lambda: "still serving" in log.read_text() or demo.poll() is not None, timeout=100)
        children = children_of(demo.pid)
        assert len(children) == 2, log.read_text()  # Redis and the service
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(30) == 0
    assert not [pid for pid in children if is_running(pid)]


def test_interrupted_in_the_middle_it_takes_everything_down(movielens: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_demo(movielens, log) as demo:
        eventually(lambda: "catalog published" in log.read_text() or demo.poll() is not None, timeout=60)
        children = eventually(lambda: pids if len(pids := children_of(demo.pid)) == 2 else None)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(45) == 130
    assert not [pid for pid in children if is_running(pid)]
    assert "Traceback" not in log.read_text()


def test_missing_data_is_one_line_and_exit_code_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", f"--movielens={tmp_path}"]) == 1
    assert "ml-1m.item" in capfd.readouterr().err


def test_a_failed_check_is_exit_code_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumer.demo.run.run_demo", lambda options, console: False)
    assert main(["demo"]) == 1
    monkeypatch.setattr("consumer.demo.run.run_demo", lambda options, console: True)
    assert main(["demo"]) == 0


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
