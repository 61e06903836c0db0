"""Without a CUDA device Triton kernels run in Triton's interpreter; triton reads the variable when it is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
