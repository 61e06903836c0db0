"""Large copies between host and device."""

import numpy as np
import pytest
import torch

from engine.catalog.ferry import PIECE, download, upload

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_CUDA])]
LENGTHS = [0, 1, PIECE // 12, PIECE // 12 + 1, PIECE, 3 * PIECE // 12, 3 * PIECE // 12 + 5]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.bool_])
@pytest.mark.parametrize("rows", LENGTHS)
def test_what_goes_over_and_back_is_the_same(device: str, dtype: type, rows: int) -> None:
    array: np.ndarray = np.random.default_rng(rows).integers(0, 2, (rows, 3)).astype(dtype)
    array.flags.writeable = False
    tensor = upload(array, torch.device(device))
    assert tensor.device.type == device
    assert np.array_equal(download(tensor), array)
    assert download(tensor).dtype == array.dtype


def test_a_copy_does_not_change_with_what_it_is_of() -> None:
    array = np.zeros(3, dtype=np.int32)
    tensor = upload(array, torch.device("cpu"))
    array[0] = 1
    assert tensor.tolist() == [0, 0, 0]
