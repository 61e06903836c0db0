"""Environment that libraries read when they are imported.

One thread each: the products here are small, and a second thread mostly waits. Without a CUDA device Triton kernels run
in Triton's interpreter.
"""

import logging
import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def _root_logger_as_it_was() -> Iterator[None]:
    """A command under test sends logging to the standard error of its moment, which is gone after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
    root.setLevel(level)
