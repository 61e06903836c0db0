"""The recursive least squares behind the cost model."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from consumer.serving.gains import CLIP, NOISE, Gains

SPREAD, DRIFT = 0.5, 0.03
part = st.floats(0.0, 1.0)


@given(st.lists(st.tuples(st.tuples(part, part, part, part, part), st.floats(0.0, 10.0), part), max_size=40))
def test_each_step_is_the_one_of_the_textbook(
    steps: list[tuple[tuple[float, float, float, float, float], float, float]],
) -> None:
    gains, values, variance = Gains(), np.ones(5), np.eye(5) * SPREAD**2
    for parts, seen, error in steps:
        gains.correct(parts, seen, error)
        variance = variance + np.eye(5) * DRIFT**2
        variance *= min(1.0, 5 * SPREAD**2 / float(variance.trace()))
        towards = variance @ parts
        spread = float(parts @ towards) + NOISE**2
        most = CLIP * max(spread**0.5, error)
        values = np.maximum(values + towards / spread * np.clip(seen - parts @ values, -most, most), 0.0)
        variance = variance - np.outer(towards, towards) / spread
        np.testing.assert_allclose(gains.values, values, rtol=1e-9, atol=1e-9)
