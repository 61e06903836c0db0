"""Which GPUs ``serve --gpus`` takes, and the settings of the process on each."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Literal

from catalog_sync.settings import CatalogSettings
from consumer.service.settings import ServiceSettings
from engine.errors import RecallstreamError
from engine.settings import EngineSettings

VISIBLE = "CUDA_VISIBLE_DEVICES"


class GpuError(RecallstreamError):
    """There are not as many GPUs as were asked for."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """``name``: the GPU's own index or UUID, the ``gpu`` label of metrics; counted from 0 on the CPU."""

    name: str
    is_cuda: bool

    def settings(self, settings: ServiceSettings) -> ServiceSettings:
        """What its process gets: names in the group and in transactions, and a catalog directory, of its own.

        Raises pydantic's ValidationError if the name does not fit.
        """
        suffix = f"gpu{self.name}"
        catalog, kafka = settings.catalog, settings.kafka
        changes = {
            "instance": f"{catalog.instance}-{suffix}",
            "disk": catalog.disk and catalog.disk / suffix,
        }
        given = {"instance_id": kafka.instance_id, "transactional_id": kafka.transactional_id}
        names = {field: name and f"{name}-{suffix}" for field, name in given.items()}
        device = {"device": "cuda"} if self.is_cuda else {}
        return settings.model_copy(
            update={
                "catalog": CatalogSettings.model_validate(catalog.model_dump() | changes),
                "kafka": kafka.model_copy(update=names),
                "engine": settings.engine.model_copy(update=device),
            }
        )


def visible_gpus() -> list[str]:
    """Their names as CUDA_VISIBLE_DEVICES has them. Counted in another process: this one never loads torch."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        count = other.submit(_count).result()
    given = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    return given[:count] if given else [str(index) for index in range(count)]


def choose(
    wanted: int | Literal["all"], engine: EngineSettings, visible: Callable[[], Sequence[str]] = visible_gpus
) -> list[Gpu]:
    """The first ``wanted`` GPUs of ``visible``; on the CPU just as many processes. Raises GpuError."""
    if engine.device == "cpu":
        if wanted == "all":
            raise GpuError("--gpus all: engine.device is cpu; give a number")
        return [Gpu(str(index), is_cuda=False) for index in range(wanted)]
    names = visible()
    if not names:
        raise GpuError("--gpus: no CUDA GPU is visible; --engine.device cpu runs as many processes on the CPU")
    if wanted == "all":
        wanted = len(names)
    if wanted > len(names):
        raise GpuError(f"--gpus {wanted}: only {len(names)} GPUs are visible ({', '.join(names)})")
    return [Gpu(name, is_cuda=True) for name in names[:wanted]]


def _count() -> int:
    import torch

    return torch.cuda.device_count()
