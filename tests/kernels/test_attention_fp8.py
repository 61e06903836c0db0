"""Decode attention that quantises its result, against float64."""

from types import ModuleType

import pytest
import torch

from kernels.attention import decode, triton_decode
from kernels.linear.scaled import Fp8Matrix
from tests.kernels.device import EVERYWHERE, error
from tests.kernels.fp8 import assert_quantised
from tests.kernels.test_triton_attention import PAGE, Pages, exact

MODULES = pytest.mark.parametrize("module", [decode, triton_decode], ids=["twin", "triton"])


@MODULES
@EVERYWHERE
@pytest.mark.parametrize(
    ("lengths", "widths", "heads", "group", "dim"),
    [([40, 1, 33], [9, 3, 0], 2, 2, 16), ([17, 70], [5, 4], 1, 8, 32), ([20, 35], [4, 6], 1, 3, 16)],
)
def test_each_beam_is_rounded_by_a_scale_of_its_own(
    module: ModuleType,
    device: str,
    dtype: torch.dtype,
    lengths: list[int],
    widths: list[int],
    heads: int,
    group: int,
    dim: int,
) -> None:
    if device == "cuda" and module is decode:
        pytest.skip("a twin is for the CPU")
    generator = torch.Generator().manual_seed(7)
    requests, beams, steps = len(lengths), max(widths), 2
    pages = Pages(lengths, heads, dim, PAGE, device, dtype)
    q = torch.randn(requests, beams, heads * group, dim, generator=generator).to(dtype)
    own = torch.randn(2, steps, requests, beams, heads, dim, generator=generator).to(dtype)
    path = torch.randint(0, beams, (steps, requests, beams), generator=generator).int()
    width = torch.tensor(widths, dtype=torch.int32)
    found = module.beam_decode_attention_fp8(
        q.to(device), pages.k, pages.v, pages.table, pages.length,
        own[0].to(device), own[1].to(device), path.to(device), width.to(device), 0.3,
    )  # fmt: skip
    for r in range(requests):
        rows = []
        for b in range(widths[r]):
            at = torch.arange(steps), r, path[:, r, b].long()
            k, v = (torch.cat([pages.contexts[r][i], own[i][at]]) for i in (0, 1))
            rows.append(exact(q[r, b], k, v, 0.3).flatten())
        mine = Fp8Matrix(*(each[r * beams :][: widths[r]] for each in (found.values, found.scale)))
        if rows and dtype == torch.float32:
            assert_quantised(mine, torch.stack(rows))
        elif rows:  # the parts are rounded to bfloat16 before they are joined
            assert error(mine.values.float() * mine.scale[:, None], torch.stack(rows)) < 0.04
        assert not found.values[r * beams + widths[r] : (r + 1) * beams].float().any()
