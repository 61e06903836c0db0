"""What the run ran on, and what the card did meanwhile."""

import os
import platform
import subprocess
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

import torch

_SAMPLE_S = 0.02
_PACKAGES = ("torch", "triton", "transformers", "confluent-kafka", "numpy")


def describe(device: torch.device) -> dict[str, object]:
    """Device, versions and commit of this process."""
    found: dict[str, object] = {"device": device_name(device), "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if device.type == "cuda":
        found |= {"cuda": torch.version.cuda, "driver": _driver()}
    return found | {"commit": commit()}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {platform.machine()}"


def commit() -> str:
    """Short hash of the checkout, with a + if files differ from it; outside git ``BENCH_COMMIT``, or unknown."""
    root = Path(__file__).parents[1]
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("BENCH_COMMIT", "unknown")
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


class CardWatch:
    """Samples SM clock and power while it is open. Reports nothing on a CPU or without nvidia-ml-py."""

    def __init__(self, device: torch.device) -> None:
        self._samples: list[tuple[int, float]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._nvml = _nvml() if device.type == "cuda" else None
        self._index = device.index or 0

    def __enter__(self) -> Self:
        if self._nvml is not None:
            self._thread = threading.Thread(target=self._sample, args=(self._nvml,), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def summary(self) -> dict[str, float] | None:
        """Medians over the samples: ``sm_mhz``, ``watts``."""
        if not self._samples:
            return None
        clocks, watts = zip(*self._samples, strict=True)
        return {"sm_mhz": median(clocks), "watts": round(median(watts), 1), "samples": len(clocks)}

    def _sample(self, nvml: Any) -> None:
        handle = _handle(nvml, self._index)
        while not self._stop.is_set():
            clock = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
            self._samples.append((clock, nvml.nvmlDeviceGetPowerUsage(handle) / 1e3))
            self._stop.wait(_SAMPLE_S)


def _handle(nvml: Any, index: int) -> Any:
    """The card that CUDA calls ``index``: of those that this process may see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    name = visible.split(",")[index].strip() if visible else str(index)
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)


def _nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _driver() -> str:
    nvml = _nvml()
    return "unknown" if nvml is None else str(nvml.nvmlSystemGetDriverVersion())
