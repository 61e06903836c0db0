"""How fast a model can be on a device, from the device's figures and the share of them that was reached on one H200."""

from dataclasses import dataclass

from engine.runtime.cost import Cost

COMPUTE_SHARE = 0.57
"""Of the matrix units' dense rate, products and attention together, bfloat16 Qwen3-1.7B, 256 to 40,000 rows."""

FP8_GAIN = 1.6
"""How much faster the layers' products are in float8, with the kernels around them, on the same H200."""

BANDWIDTH_SHARE = 0.9
"""Of the memory's bandwidth while weights are read."""

LAYER_S = 10e-6
"""Small kernels and gaps of one layer in one pass."""


@dataclass(frozen=True, slots=True)
class Device:
    """Bytes of memory, dense bfloat16 operations a second, bytes a second, by datasheet; whether it has float8."""

    memory: float
    operations: float
    bandwidth: float
    fp8: bool = True


DEVICES = {
    "a100": Device(80e9, 312e12, 2.0e12, fp8=False),
    "b200": Device(180e9, 2250e12, 8.0e12),
    "h100": Device(80e9, 989e12, 3.35e12),
    "h200": Device(141e9, 989e12, 4.8e12),
    "l4": Device(24e9, 121e12, 0.3e12),
    "l40s": Device(48e9, 362e12, 0.864e12),
}


@dataclass(frozen=True, slots=True)
class Roofline:
    """Expected seconds of a batch of equal requests."""

    cost: Cost
    device: Device

    def prefill_s(self, batch: int, context: int) -> float:
        rows = batch * context
        return self._pass_s(rows, 0.5 * context)

    def decode_s(self, batch: int, context: int, width: int) -> float:
        """All levels; the first needs no pass of its own."""
        levels = len(self.cost.level_sizes)
        c = self.cost.config
        heads = sum(self.cost.level_sizes) * 2.0 * c.hidden_size * batch * width
        return (levels - 1) * self._pass_s(batch * width, context) + heads / self._operations

    def requests_per_s(self, batch: int, context: int, width: int) -> float:
        """One batch after the other."""
        return batch / (self.prefill_s(batch, context) + self.decode_s(batch, context, width))

    @property
    def _operations(self) -> float:
        return COMPUTE_SHARE * self.device.operations

    def _pass_s(self, rows: int, keys: float) -> float:
        """All layers for so many rows, each of which attends to ``keys`` keys."""
        c = self.cost.config
        products = 2.0 * self.cost.layer_parameters * rows
        attention = 4.0 * c.layers * c.heads * c.head_dim * keys * rows
        if self.cost.fp8:
            products /= FP8_GAIN
        weights = self.cost.layer_bytes / (BANDWIDTH_SHARE * self.device.bandwidth)
        return (products + attention) / self._operations + weights + c.layers * LAYER_S
