"""The command line: help, exit codes, one line for an error."""

import logging
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer.cli.commands import COMMANDS
from consumer.cli.main import main
from tests.engine.tiny_models import TinyModel, write_model


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(TinyModel(sizes=(6, 5, 4)), tmp_path_factory.mktemp("model"))


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What a failed command wrote: one line, apart from its log."""
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("recallstream")]
    return line


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


def test_no_command_is_a_usage_error_with_the_same_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "serve" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"usage: recallstream {name}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("recallstream 0.")


@pytest.mark.parametrize("module", ["pydantic", "consumer.cli.serve"])
def test_an_interrupt_while_modules_load_is_an_exit_code_alone(module: str) -> None:
    """As the console script starts it; loading ``module`` is when the interrupt comes."""
    start = f"""
import os, signal, sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from consumer.cli.main import main
sys.exit(main(["serve", "--help"]))
"""
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sreve"]) == 2
    assert error_line(capsys) == f"recallstream: unknown command 'sreve'; there are {', '.join(COMMANDS)}"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "engine.model: Field required"),
        (["--engine.model=m", "--http.prot=1"], "--http.prot"),
        (["--engine.model=m", "--http.port=x"], "http.port: "),
        (["--engine.model=m", "--config=absent.toml"], "absent.toml: No such file"),
    ],
)
def test_wrong_settings_are_one_line_and_exit_code_2(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *flags]) == 2
    line = error_line(capsys)
    assert line.startswith("recallstream serve: ")
    assert message in line


def test_flags_may_be_spelled_with_dashes_or_as_the_settings_are(model: Path) -> None:
    for flag in ("--engine.max_batch=20", "--engine.max-batch=20"):
        assert main(["serve", "--check", f"--engine.model={model}", flag]) == 0


def test_a_setting_behind_the_sub_command_is_told_where_it_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dead-letters", "list", "--kafka.group-id=g"]) == 2
    assert error_line(capsys).endswith("--kafka.group-id=g; settings stand before the sub-command")
    assert main(["serve", "--kafka.nothing=1"]) == 2
    assert error_line(capsys).endswith("unrecognized arguments: --kafka.nothing=1")


def test_check_reads_the_model_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--check", "--engine.model=absent"]) == 1
    assert "absent/sid.json: No such file" in error_line(capsys)


def test_a_prompt_that_the_model_does_not_have_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["serve", "--check", f"--engine.model={model}"]
    assert main([*flags, '--kafka.topics={"t": {"template": "home"}}']) == 1
    assert re.search(r"kafka\.topics\.t\.template: model \S+ has no prompt 'home', only default,", error_line(capsys))
    assert main([*flags, "--recall.template=home"]) == 1
    assert " recall.template: model " in error_line(capsys)


def test_a_missing_model_ends_the_start_before_anything_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--engine.model=absent", "--http.port=0"]) == 1
    *log, line = capsys.readouterr().err.splitlines()
    assert line == "recallstream serve: absent/sid.json: No such file or directory"
    assert not any("status page" in each for each in log)


def test_a_port_in_use_ends_the_start(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", f"--engine.model={model}", f"--http.port={port}"]) == 1
    assert f"http.port {port}: Address already in use" in error_line(capsys)


def test_the_parent_of_several_gpus_loads_no_torch() -> None:
    modules = "consumer.cli.serve, consumer.service.app, consumer.fleet.app, consumer.fleet.gpus, engine.model.spec"
    check = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60).returncode == 0
