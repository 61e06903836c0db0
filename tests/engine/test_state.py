"""Page leases, ContextKV and BeamKV."""

import gc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.decoder_config import DecoderConfig
from engine.state.beam_kv import BeamMemory
from engine.state.context_kv import ContextKV
from engine.state.page_pool import PagePool, PagesExhaustedError

CPU = torch.device("cpu")
CONFIG = DecoderConfig(
    family="llama",
    vocab_size=8,
    hidden_size=8,
    intermediate_size=8,
    layers=2,
    heads=2,
    kv_heads=2,
    head_dim=4,
    norm_eps=1e-6,
    rope_theta=1e4,
    rope_scaling=None,
    max_positions=64,
    tied_head=False,
)


def test_a_lease_gives_its_pages_back_at_the_end_of_its_block_even_on_an_error() -> None:
    pool = PagePool(5)
    with pool.lease(3) as lease:
        assert len(set(lease.pages.tolist())) == 3
        assert (pool.used, pool.free, pool.open_leases) == (3, 2, 1)
    with pytest.raises(PagesExhaustedError), pool.lease(2):
        pool.lease(4)
    assert (pool.used, pool.open_leases, pool.leaked, pool.high_water) == (0, 0, 0, 3)


def test_a_second_release_does_nothing() -> None:
    pool = PagePool(2)
    lease = pool.lease(1)
    lease.release()
    lease.release()
    assert (pool.free, pool.open_leases) == (2, 0)


def test_more_pages_than_are_free_are_refused_and_nothing_is_taken() -> None:
    pool = PagePool(2)
    with pool.lease(1), pytest.raises(PagesExhaustedError):
        pool.lease(2)
    assert (pool.free, pool.high_water) == (2, 1)


def test_a_dropped_lease_returns_its_pages_and_counts_as_leaked() -> None:
    pool = PagePool(4)
    pool.lease(4)
    gc.collect()
    assert (pool.free, pool.leaked, pool.open_leases) == (4, 1, 0)


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(1, 6), st.just(0))))
def test_no_page_is_ever_held_twice(steps: list[int]) -> None:
    """A number leases that many pages, 0 releases the oldest lease."""
    pool, held = PagePool(10), []
    for pages in steps:
        if pages and pages <= pool.free:
            held.append(pool.lease(pages))
        elif not pages and held:
            held.pop(0).release()
        taken = [page for lease in held for page in lease.pages.tolist()]
        assert len(set(taken)) == len(taken) == pool.used
        assert set(taken) <= set(range(10))
    for lease in held:
        lease.release()
    assert pool.free == 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_context_pool_starts_zeroed_and_clears_single_pages(dtype: torch.dtype) -> None:
    context = ContextKV(CONFIG, 4, CPU, dtype)
    keys, values = context.layer(1)
    assert keys.shape == values.shape == (4, 2, 128, 4)
    assert keys.dtype == dtype
    assert not keys.any()
    keys.fill_(torch.nan)
    values.fill_(torch.nan)
    context.clear(np.array([0, 2], dtype=np.int32))
    for tensor in context.layer(1):
        assert [bool(page.isnan().any()) for page in tensor] == [False, True, False, True]


@settings(deadline=None)
@given(st.data())
def test_the_path_names_each_beams_ancestors_and_nothing_is_copied(data: st.DataObject) -> None:
    requests, width, steps = 2, 5, 4
    beams = BeamMemory(CONFIG, steps, requests * width, CPU, torch.float32).beams(requests, width)
    before = [1] * requests
    ancestry: list[list[list[int]]] = [[[]] for _ in range(requests)]
    kept = beams.layer(0)[0].clone()
    for step in range(steps):
        rows = data.draw(st.integers(1, width))
        parents = [[data.draw(st.integers(0, count - 1)) for _ in range(rows)] for count in before]
        beams.advance(step, torch.tensor(parents, dtype=torch.int32), torch.tensor([rows] * requests))
        ancestry = [[ancestry[r][parent] + [b] for b, parent in enumerate(parents[r])] for r in range(requests)]
        path = beams.path(step, rows)
        assert path.permute(1, 2, 0).tolist() == ancestry
        before = [rows] * requests
    assert torch.equal(beams.layer(0)[0], kept)


def test_one_step_of_beams_is_written_as_pages_of_one_token() -> None:
    beams = BeamMemory(CONFIG, 2, 12, CPU, torch.float32).beams(3, 4)
    keys, _ = beams.as_pages(1, 1)
    keys[beams.slots(2).long(), :, 0] = torch.arange(6.0)[:, None, None]
    written = beams.layer(1)[0]
    assert written[1, :, :2, 0, 0].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert not written[0].any()
    assert not written[1, :, 2:].any()
