"""Environment that libraries read when they are imported.

One thread each: the products here are small, and a second thread mostly waits. Without a CUDA device Triton kernels run
in Triton's interpreter.
"""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# How long an example takes is the machine's business, which may be busy with something else: no test may fail by it.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def _root_logger_as_it_was() -> Iterator[None]:
    """A command under test sends logging to the standard error of its moment, which is gone after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
    root.setLevel(level)
