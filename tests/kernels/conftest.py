from typing import Any

import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter


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


@pytest.fixture(autouse=True)
def float8_rounded_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter drops the carry when it rounds to float8 (127.9 becomes 64), and all below 2**-6."""
    convert = interpreter._convert_float  # noqa: SLF001

    def rounded(value: Any, source: Any, target: Any, mode: Any) -> Any:
        if target is not tl.float8e4nv:
            return convert(value, source, target, mode)
        return torch.from_numpy(value).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", rounded)
