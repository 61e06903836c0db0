"""The element-wise twins against float64."""

import numpy as np
import pytest
import torch

from kernels.elementwise.qk_norm_rope_write import qk_norm_rope_write
from kernels.elementwise.rms_norm import rms_norm
from kernels.elementwise.silu_mul import silu_mul


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 3), (5, 24), (2, 3, 7)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm_adds_the_residual_first(shape: tuple[int, ...], with_residual: bool) -> None:
    x, weight = randn(*shape), randn(shape[-1], seed=1)
    residual = randn(*shape, seed=2) if with_residual else None
    h = x.double() + (0 if residual is None else residual.double())
    expected = h / (h.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    normed, summed = rms_norm(x, weight, 1e-6, residual)
    np.testing.assert_allclose(normed, expected, atol=1e-5)
    np.testing.assert_allclose(summed, h, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 2), (7, 30)])
def test_silu_mul_gates_with_the_first_half(shape: tuple[int, int]) -> None:
    x = randn(*shape)
    gate, up = x.double().chunk(2, dim=-1)
    np.testing.assert_allclose(silu_mul(x), gate / (1 + (-gate).exp()) * up, atol=1e-6)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "block"), [(1, 1, 2, 1), (4, 2, 6, 8), (3, 1, 16, 128)])
def test_queries_and_keys_are_normed_and_rotated_and_keys_and_values_written(
    normed: bool, heads: int, kv_heads: int, head_dim: int, block: int
) -> None:
    tokens = 5
    qkv = randn(tokens, (heads + 2 * kv_heads) * head_dim)
    weights = tuple(randn(head_dim, seed=seed) if normed else None for seed in (1, 2))
    angle = np.outer(np.arange(50), 100.0 ** -(np.arange(head_dim // 2) / max(1, head_dim // 2)))
    cos, sin = (torch.tensor(table, dtype=torch.float32) for table in (np.cos(angle), np.sin(angle)))
    positions = torch.tensor([0, 3, 49, 7, 7], dtype=torch.int32)
    k_out, v_out = torch.zeros((2, 6, kv_heads, block, head_dim))
    slots = torch.tensor([5 * block, 0, -1, 2 * block, 3 * block + block - 1], dtype=torch.int32)
    q = qk_norm_rope_write(qkv, weights[0], weights[1], 1e-6, cos, sin, positions, k_out, v_out, slots)

    def expected(head: np.ndarray, weight: torch.Tensor | None, position: int) -> np.ndarray:
        if weight is not None:
            head = head / np.sqrt(np.mean(head**2) + 1e-6) * weight.double().numpy()
        turned = (head[: head_dim // 2] + 1j * head[head_dim // 2 :]) * np.exp(1j * angle[position])
        return np.concatenate([turned.real, turned.imag])

    rows = qkv.double().numpy().reshape(tokens, -1, head_dim)
    written_k, written_v = np.zeros(k_out.shape), np.zeros(v_out.shape)
    for t, (position, slot) in enumerate(zip(positions.tolist(), slots.tolist(), strict=True)):
        for h in range(heads):
            np.testing.assert_allclose(q[t, h], expected(rows[t, h], weights[0], position), atol=1e-5)
        if slot >= 0:
            for h in range(kv_heads):
                key = expected(rows[t, heads + h], weights[1], position)
                written_k[slot // block, h, slot % block] = key
                written_v[slot // block, h, slot % block] = rows[t, heads + kv_heads + h]
    np.testing.assert_allclose(k_out, written_k, atol=1e-5)
    np.testing.assert_allclose(v_out, written_v, atol=1e-6)


def test_results_keep_bfloat16() -> None:
    x = randn(3, 8).bfloat16()
    normed, summed = rms_norm(x, torch.ones(8, dtype=torch.bfloat16), 1e-6, x)
    assert normed.dtype == summed.dtype == silu_mul(x).dtype == torch.bfloat16
