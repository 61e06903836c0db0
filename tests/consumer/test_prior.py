"""The roofline as a line over the work of a batch."""

import pytest

from consumer.serving.cost_model import UNKNOWN, CostModel, Work
from consumer.serving.prior import of_roofline
from engine.runtime.cost import Cost
from engine.runtime.roofline import DEVICES, Roofline
from tests.engine.test_memory import QWEN3_1_7B


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(
    ("batch", "context", "width"), [(1, 1_000, 256), (8, 1_000, 256), (4, 5_000, 512), (16, 200, 64)]
)
def test_it_says_what_the_roofline_says(batch: int, context: int, width: int, fp8: bool) -> None:
    roofline = Roofline(Cost(QWEN3_1_7B, (8192,) * 3, itemsize=2, fp8=fp8), DEVICES["h200"])
    prior = of_roofline(roofline)
    work = Work()
    for _ in range(batch):
        work += Work.of(context, width)
    expected = roofline.prefill_s(batch, context) + roofline.decode_s(batch, context, width)
    assert CostModel(prior).predict("level", work) == pytest.approx(expected, rel=1e-6)
    assert CostModel(prior).trusted("level")
    assert not UNKNOWN.known
