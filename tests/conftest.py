"""Environment that libraries read when they are imported.

One thread each: the products here are small, and a second thread mostly waits. Without a CUDA device Triton kernels run
in Triton's interpreter.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
