"""``recallstream estimate``: memory and speed of a model on a GPU that need not be there."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import SettingsError

from engine.settings import EngineSettings

if TYPE_CHECKING:
    from rich.table import Table

    from engine.model.spec import ModelSpec
    from engine.runtime.cost import Cost
    from engine.runtime.roofline import Device, Roofline

GIB = 1 << 30


class Estimate(BaseModel):
    """Tell what a model takes and about how fast it is, from its shape and a GPU's datasheet; no weights are read.

    Times are those of equal requests, without a user's context being reused. Expect them to be right to a
    quarter on a data-centre GPU; measure with recallstream bench offline before relying on them.
    """

    model_config = ConfigDict(extra="forbid")

    model: Path = Field(description="model directory; only config.json and sid.json are read")
    context: int = Field(1000, ge=1, description="context tokens of a request")
    width: int = Field(256, ge=1, description="beam width, the same at every level")
    precision: Literal["bf16", "fp8"] = Field("bf16", description="of the layers' weights and products")
    gpu: Literal["a100", "b200", "h100", "h200", "l4", "l40s"] = Field("h200", description="whose datasheet is taken")
    memory_gb: float | None = Field(None, gt=0, description="other memory than the datasheet's, in 10^9 bytes")
    tflops: float | None = Field(None, gt=0, description="another dense bfloat16 rate, in 10^12 operations a second")
    bandwidth_tb: float | None = Field(None, gt=0, description="another memory bandwidth, in 10^12 bytes a second")
    batch: int = Field(16, ge=1, le=1024, description="requests of the largest batch")

    def cli_cmd(self) -> None:
        from rich.console import Console

        from engine.model.spec import ModelSpec
        from engine.runtime.cost import Cost
        from engine.runtime.roofline import Roofline

        spec = ModelSpec.load(self.model)
        cost = Cost(spec.decoder, spec.level_sizes, itemsize=2, fp8=self.precision == "fp8")
        roofline = Roofline(cost, self._device())
        console = Console()
        console.print(self._memory(spec, cost, roofline.device))
        console.print(self._speed(roofline))

    def _settings(self) -> EngineSettings:
        """The engine's defaults, widened where the request needs it."""
        limits = EngineSettings(model=self.model, max_batch=self.batch, max_width=1)
        rows, tokens = max(limits.max_batch_rows, self.width), max(limits.max_batch_tokens, self.context)
        return limits.model_copy(update={"max_width": self.width, "max_batch_rows": rows, "max_batch_tokens": tokens})

    def _device(self) -> "Device":
        from engine.runtime.roofline import DEVICES, Device

        sheet = DEVICES[self.gpu]
        if self.precision == "fp8" and not sheet.fp8:
            raise SettingsError(f"precision fp8: {self.gpu} has no float8 products")
        return Device(
            memory=sheet.memory if self.memory_gb is None else self.memory_gb * 1e9,
            operations=sheet.operations if self.tflops is None else self.tflops * 1e12,
            bandwidth=sheet.bandwidth if self.bandwidth_tb is None else self.bandwidth_tb * 1e12,
        )

    def _memory(self, spec: "ModelSpec", cost: "Cost", device: "Device") -> "Table":
        """Raises ModelError if the model does not fit."""
        from rich.table import Table

        from engine.runtime.memory import pages_in

        settings = self._settings()
        beams = cost.beam_bytes(settings.max_batch_rows)
        pages = pages_in(int(device.memory) - cost.weight_bytes - beams, cost, settings)
        pool, one = pages * cost.page_bytes, cost.context_bytes(self.context)
        table = Table(title=f"{spec.id}: memory in GiB of {device.memory / GIB:.1f}", title_justify="left")
        table.add_column("what")
        table.add_column("GiB", justify="right")
        for what, size in (
            ("weights", cost.weight_bytes),
            (f"beams, {settings.max_batch_rows} rows", beams),
            ("work of the largest batch", cost.work_bytes(settings)),
            (f"graphs, at most {settings.max_graphs}", cost.graph_bytes(settings)),
            (f"context pool, {pool // one:,} contexts of {self.context:,} tokens", pool),
        ):
            table.add_row(what, f"{size / GIB:.2f}")
        return table

    def _speed(self, roofline: "Roofline") -> "Table":
        from rich.table import Table

        from engine.runtime.buckets import request_buckets

        settings = self._settings()
        title = f"context {self.context}, width {self.width}: expected on {self.gpu}"
        table = Table(title=title, title_justify="left")
        for column in ("batch", "prefill ms", "decode ms", "requests/s"):
            table.add_column(column, justify="right")
        for batch in request_buckets(self.batch):
            tokens, rows = batch * self.context, batch * self.width
            if tokens > settings.max_batch_tokens or rows > settings.max_batch_rows:
                break
            prefill, decode = (
                roofline.prefill_s(batch, self.context),
                roofline.decode_s(batch, self.context, self.width),
            )
            table.add_row(
                str(batch),
                f"{prefill * 1e3:.1f}",
                f"{decode * 1e3:.1f}",
                f"{roofline.requests_per_s(batch, self.context, self.width):.1f}",
            )
        return table
