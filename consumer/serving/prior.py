"""What a batch takes before one was measured: the roofline of a known GPU, else a guess."""

import torch

from consumer.serving.cost_model import UNKNOWN, Prior
from engine.model.spec import ModelSpec
from engine.recall_engine import RecallEngine
from engine.runtime.cost import Cost
from engine.runtime.roofline import DEVICES, Roofline


def prior_of_engine(engine: RecallEngine) -> Prior:
    """On the device that the engine has, in its precision."""
    device = torch.cuda.get_device_name(engine.device) if engine.device.type == "cuda" else "cpu"
    return prior_of(engine.spec, device, fp8=engine.settings.precision == "fp8")


def prior_of(spec: ModelSpec, device_name: str, *, fp8: bool) -> Prior:
    """``device_name``: as the driver gives it."""
    words = device_name.lower().replace("-", " ").split()
    device = next((sheet for name, sheet in DEVICES.items() if name in words), None)
    if device is None:
        return UNKNOWN
    return of_roofline(Roofline(Cost(spec.decoder, spec.level_sizes, itemsize=2, fp8=fp8), device))


def of_roofline(roofline: Roofline) -> Prior:
    """The roofline is a line over the work of a batch: a few points of it give its coefficients."""
    empty_prefill, empty_decode = roofline.prefill_s(0, 0), roofline.decode_s(0, 0, 0)
    short, long = (roofline.prefill_s(1, tokens) - empty_prefill for tokens in (1_000, 2_000))
    token_key = (long - 2 * short) / (2_000**2 / 2 - 2 * 1_000**2 / 2)
    row = roofline.decode_s(1, 0, 1) - empty_decode
    return Prior(
        batch=empty_prefill + empty_decode,
        token=short / 1_000 - token_key * 500,
        token_key=token_key,
        row=row,
        row_key=roofline.decode_s(1, 1, 1) - empty_decode - row,
        known=True,
    )
