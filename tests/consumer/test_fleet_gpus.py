"""Which GPUs ``--gpus`` takes, and what each process is told."""

import logging
import os
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from consumer.cli.main import main
from consumer.fleet.gpus import Gpu, GpuError, choose
from consumer.fleet.process import serve_gpu
from consumer.service.settings import ServiceSettings
from engine.errors import ModelError
from engine.settings import EngineSettings
from tests.engine.tiny_models import TinyModel, write_model

ON_CUDA = EngineSettings(model=Path("model"))
ON_CPU = EngineSettings(model=Path("model"), device="cpu")


def four() -> list[str]:
    return ["0", "3", "GPU-8f2a", "7"]


def none() -> list[str]:
    return []


def test_all_takes_every_visible_gpu_and_a_number_the_first_ones() -> None:
    assert choose("all", ON_CUDA, four) == [Gpu(name, is_cuda=True) for name in four()]
    assert choose(2, ON_CUDA, four) == [Gpu("0", is_cuda=True), Gpu("3", is_cuda=True)]


def test_too_few_gpus_are_an_error_and_never_the_cpu() -> None:
    with pytest.raises(GpuError, match=r"--gpus 5: only 4 GPUs are visible \(0, 3, GPU-8f2a, 7\)"):
        choose(5, ON_CUDA, four)
    for wanted in ("all", 1):
        with pytest.raises(GpuError, match="no CUDA GPU is visible"):
            choose(wanted, ON_CUDA, none)


def test_the_cpu_runs_as_many_processes_as_are_asked_for() -> None:
    assert choose(2, ON_CPU, none) == [Gpu("0", is_cuda=False), Gpu("1", is_cuda=False)]
    with pytest.raises(GpuError, match="give a number"):
        choose("all", ON_CPU, none)


def test_each_process_has_a_name_a_membership_and_a_directory_of_its_own() -> None:
    settings = ServiceSettings.model_validate(
        {
            "engine": {"model": "model"},
            "catalog": {"instance": "host-1", "disk": "/var/lib/recallstream", "url": "redis://:secret@redis:6379/0"},
            "kafka": {"group_protocol": "classic", "instance_id": "host-1"},
        }
    )
    own = Gpu("3", is_cuda=True).settings(settings)
    assert own.catalog.instance == "host-1-gpu3"
    assert own.catalog.disk == Path("/var/lib/recallstream/gpu3")
    assert own.catalog.url == settings.catalog.url
    assert own.kafka.instance_id == "host-1-gpu3"
    assert own.engine.device == "cuda", "auto would fall back to the CPU"
    assert Gpu("0", is_cuda=False).settings(settings).engine == settings.engine


def test_what_is_not_set_stays_unset() -> None:
    own = Gpu("0", is_cuda=False).settings(ServiceSettings.model_validate({"engine": {"model": "model"}}))
    assert own.catalog.disk is None
    assert own.kafka.instance_id is None


@pytest.mark.parametrize(("gpu", "visible"), [(Gpu("3", is_cuda=True), "3"), (Gpu("1", is_cuda=False), "0,3")])
def test_a_process_sees_its_own_gpu_and_a_failed_start_is_one_line(
    gpu: Gpu, visible: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []

    def run(*_: object) -> None:
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
        raise ModelError("no sid.json")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    monkeypatch.setattr("consumer.service.app.run", run)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    with pytest.raises(SystemExit) as stop:
        serve_gpu(gpu, ServiceSettings.model_validate({"engine": {"model": "model"}}), Pipe()[0])
    assert seen == [visible]
    assert stop.value.code == 1
    (record,) = caplog.records
    assert (record.getMessage(), record.exc_info) == ("no sid.json", None)


@pytest.mark.parametrize("value", ["0", "-1", "most"])
def test_a_number_that_is_none_is_a_usage_error(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--engine.model=m", f"--gpus={value}"]) == 2
    assert "gpus" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there are GPUs")
def test_the_gpus_are_counted_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(TinyModel(sizes=(6, 5, 4)), tmp_path)
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "0,1")
    assert main(["serve", "--check", f"--engine.model={model}", "--gpus=all"]) == 1
    assert "no CUDA GPU is visible" in capsys.readouterr().err
