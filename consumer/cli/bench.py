"""``recallstream bench``: the benchmarks of the checkout. They are no part of an installed package."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import CliSubCommand, SettingsError, get_subcommand

from engine.errors import RecallstreamError
from engine.request import Score

if TYPE_CHECKING:
    import torch

    from benchmarks.cases import Case
    from benchmarks.online import Pressure

_CHECKOUT = Path(__file__).parents[2]


class _Run(BaseModel):
    """What every benchmark is told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes CUDA where there is one")
    out: Path | None = Field(None, description="JSON file to write; default: the device's in benchmarks/results")
    wall_s: float | None = Field(None, gt=0, description="start nothing more after so many seconds")

    def _device(self) -> "torch.device":
        import torch

        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise RecallstreamError("torch finds no CUDA device")
        return torch.device(self.device)


class Offline(_Run):
    """The engine on random requests, beside its floors, its rivals and its ablations, in one run.

    Weights are random, in the exact shape of the model; every answer is constrained to a random catalog.
    """

    models: list[str] = Field(["qwen3-1.7b"], description="qwen3-0.6b, qwen3-1.7b, qwen3-4b or tiny")
    beams: list[str] = Field(["256"], description="beam widths: one for all levels, or 20/200/900 level by level")
    margins: list[str] = Field(["none"], description="score margins of the beams, or none")
    contexts: list[int] = Field([1000, 5000], description="context lengths in tokens")
    batches: list[int] = Field([1, 2, 4, 8], description="requests of a batch")
    scores: list[Score] = Field(["level"], description="what a step's probability is normalised over")
    items: int = Field(1_000_000, ge=1, description="items of the catalog")
    runs: int | None = Field(None, ge=1, description="repetitions of a case; default: a second's worth")
    floors: bool = Field(True, description="time the floors")
    precisions: list[Literal["bf16", "fp8"]] = Field(["bf16"], description="of products; fp8 where the device has it")
    chained: bool = Field(True, description="time the floors as one chain, too")
    flattened: bool = Field(True, description="time flattened beams; needs the floors")
    transformers: bool = Field(True, description="time transformers' beam search on the first case")
    free: bool = Field(True, description="time the engine without a constraint, too")
    ablate: bool = Field(True, description="run the first case with one part of the engine off at a time")
    tight: bool = Field(False, description="pools for one batch only: shows what memory is needed")
    profile: bool = Field(True, description="show where the time of each case goes, on CUDA")

    def run(self) -> None:
        from benchmarks.card import describe, device_name
        from benchmarks.measure import WallLimit
        from benchmarks.offline import Offline as OfflineRun
        from benchmarks.offline import OfflineOptions
        from benchmarks.results import ReportFile, default_path
        from benchmarks.tables import offline_tables, progress_line
        from consumer.cli.tables import folded, stdout

        limit, device, console = WallLimit(self.wall_s), self._device(), stdout()
        options = OfflineOptions(
            cases=self._cases(),
            items=self.items,
            floors=self.floors,
            chained=self.chained,
            flattened=self.flattened,
            transformers=self.transformers,
            free=self.free,
            ablate=self.ablate,
            profile=self.profile,
            tight=self.tight,
            runs=self.runs,
        )
        path = self.out or default_path(f"offline-{'-'.join(self.models)}", device_name(device))
        head = {"kind": "offline", **describe(device), "items": self.items, "wall_s": self.wall_s}
        report = ReportFile(path, head)
        for row in OfflineRun(options, device, report, limit).run():
            console.print(progress_line(row), highlight=False, soft_wrap=True)
        for each in offline_tables(report.rows):
            console.print(folded(each))

    def _cases(self) -> list["Case"]:
        from benchmarks.cases import table
        from benchmarks.shapes import SHAPES

        if unknown := [name for name in self.models if name not in SHAPES]:
            raise SettingsError(f"no model {unknown[0]!r}: there are {', '.join(SHAPES)}")
        try:
            levels = [tuple(int(width) for width in beam.split("/")) for beam in self.beams]
            beams = [widths[0] if len(widths) == 1 else widths for widths in levels]
            margins = [None if margin == "none" else float(margin) for margin in self.margins]
            return list(table(self.models, beams, self.contexts, self.batches, self.scores, margins, self.precisions))
        except ValueError as error:
            raise SettingsError(f"beams or margins: {error}") from error


class Online(_Run):
    """The whole service: requests through an embedded Kafka broker and back, beside the offline rate of this run."""

    model: str = Field("qwen3-1.7b", description="a shape with random weights, or a model directory")
    contexts: list[int] = Field([5000], min_length=1, max_length=2, description="context tokens, or least and most")
    beams: list[int] = Field([256], min_length=1, max_length=2, description="beam width, or least and most")
    outstanding: list[int] = Field([4], min_length=1, description="requests in the air at a time; one measurement each")
    rates: list[float] = Field(
        [], description="arrivals a second instead, at random, whatever is in the air; one measurement each"
    )
    requests: int = Field(100, ge=2, description="requests of a round")
    rounds: int = Field(3, ge=1, description="rounds")
    precision: Literal["bf16", "fp8"] = Field("bf16", description="of products; fp8 where the device has it")
    trace: bool = Field(False, description="one more round, profiled: how busy the device is; on CUDA")
    items: int = Field(1_000_000, ge=1, description="items of the catalog")

    def run(self) -> None:
        from benchmarks.card import describe, device_name
        from benchmarks.measure import WallLimit
        from benchmarks.online import OnlineOptions, loaded_model, run_online
        from benchmarks.results import ReportFile, default_path
        from benchmarks.tables import online_tables
        from consumer.cli.tables import folded, stdout

        limit, device, console = WallLimit(self.wall_s), self._device(), stdout()
        options = OnlineOptions(
            contexts=(self.contexts[0], self.contexts[-1]),
            widths=(self.beams[0], self.beams[-1]),
            pressures=tuple(self._pressures()),
            requests=self.requests,
            rounds=self.rounds,
            precision=self.precision,
            trace=self.trace,
        )
        path = self.out or default_path(f"online-{Path(self.model).name}", device_name(device))
        head = {"kind": "online", **describe(device), "model": Path(self.model).name, "items": self.items}
        report = ReportFile(path, head)
        with loaded_model(self.model, self.items, options, device) as engine:
            for row in run_online(engine, self.items, options, report, limit):
                console.print(f"{row['what']}: {row['requests_per_s']} requests/s", highlight=False)
        for each in online_tables(report.rows):
            console.print(folded(each))

    def _pressures(self) -> "Iterator[Pressure]":
        from benchmarks.online import Pressure

        for outstanding in () if self.rates else self.outstanding:
            yield Pressure(outstanding)
        for rate in self.rates:
            yield Pressure(max(self.outstanding), rate)


class Kernels(_Run):
    """Every kernel on the CUDA device over its floor, each checked first."""

    def run(self) -> None:
        import subprocess

        from benchmarks.card import device_name
        from benchmarks.results import default_path

        device = self._device()
        if device.type != "cuda":
            raise RecallstreamError("the kernels are timed on a CUDA device; there is none")
        path = self.out or default_path("kernels", device_name(device))
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.kernels", "--out", str(path.absolute())]
        if self.wall_s is not None:
            command += ["--wall-s", str(self.wall_s)]
        done = subprocess.run(command, cwd=_CHECKOUT)  # noqa: S603  (our own module)
        if done.returncode:
            raise RecallstreamError(f"the kernel benchmark ended with exit code {done.returncode}")


class Bench(BaseModel):
    """Measure the engine, the service or the kernels on this machine, and keep the figures.

    Needs the repository: its benchmarks are not installed with the package.
    """

    model_config = ConfigDict(extra="forbid")

    offline: CliSubCommand[Offline] = Field(description="the engine alone, its floors, rivals and ablations")
    online: CliSubCommand[Online] = Field(description="the service through Kafka")
    kernels: CliSubCommand[Kernels] = Field(description="each kernel over its floor")

    def cli_cmd(self) -> None:
        command = get_subcommand(self, is_required=False)
        if not isinstance(command, Offline | Online | Kernels):
            raise SettingsError("a sub-command is missing: offline, online or kernels")
        if not (_CHECKOUT / "benchmarks").is_dir():
            raise RecallstreamError("the benchmarks are in the repository, not in the package: run this in a checkout")
        if str(_CHECKOUT) not in sys.path:
            sys.path.append(str(_CHECKOUT))
        command.run()
