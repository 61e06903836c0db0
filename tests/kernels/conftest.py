import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The kernels are interpreted where there is no CUDA device, and compiled where there is one."""
    if torch.cuda.is_available():
        skipped = pytest.mark.skip(reason="the kernels are compiled here, not interpreted")
        chosen = [item for item in items if "interpreter" in item.name]
    else:
        skipped = pytest.mark.skip(reason="needs a CUDA device")
        chosen = [item for item in items if item.get_closest_marker("gpu")]
    for item in chosen:
        item.add_marker(skipped)
