"""Where the kernel tests run: Triton's interpreter on the CPU, or the device with the marker ``gpu``."""

import pytest
import torch

INTERPRETER = pytest.param("cpu", torch.float32, id="interpreter")
CUDA_FLOAT32 = pytest.param("cuda", torch.float32, id="cuda-float32", marks=pytest.mark.gpu)
CUDA_BFLOAT16 = pytest.param("cuda", torch.bfloat16, id="cuda-bfloat16", marks=pytest.mark.gpu)
EVERYWHERE = pytest.mark.parametrize(("device", "dtype"), [INTERPRETER, CUDA_FLOAT32, CUDA_BFLOAT16])


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative error in the Euclidean norm; NaN never compares as small."""
    difference = actual.double().cpu() - expected.double().cpu()
    return float(difference.norm() / expected.double().norm().clamp_min(1e-30))


def tolerance(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 8e-3
