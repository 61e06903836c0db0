"""The core of the products for Hopper, bfloat16, that finish what they compute: ``x @ weight.T``, tile by tile.

A program works through several tiles of 128 rows by 256 outputs. One warp brings blocks of both operands, ahead also
over the end of a tile; two warp groups of 64 rows multiply. They come apart by some blocks, so that one multiplies
while the other finishes its tile.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.gluon_copies import copy_in

GROUPS = gl.constexpr(2)
"""Warp groups that multiply."""
ROWS = gl.constexpr(64)
"""Rows of one of them."""
OUTPUTS = gl.constexpr(256)
DEPTH = gl.constexpr(64)
STAGES = gl.constexpr(4)
NEAR = gl.constexpr(32)
"""Row blocks that share an output block while it is in the cache."""


def rows_descriptor(x: Tensor) -> TensorDescriptor:
    """Of ``x``, for ``bring_tiles``."""
    return _descriptor(x, [ROWS.value, DEPTH.value])


def weight_descriptor(weight: Tensor) -> TensorDescriptor:
    """Of the weights ``[V, K]``."""
    return _descriptor(weight, [OUTPUTS.value, DEPTH.value])


def paired_descriptor(weight: Tensor) -> TensorDescriptor:
    """Of weights ``[2 N, K]`` of which output ``i`` and ``N + i`` belong together: a tile has 128 of both."""
    outputs, depth = weight.shape
    return _descriptor(weight.view(2, outputs // 2, depth), [2, OUTPUTS.value // 2, DEPTH.value])


def _descriptor(x: Tensor, block: list[int]) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16))


@gluon.jit
def make_rings(x, weight):
    """Memory for the blocks of both operands."""
    x_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES * GROUPS, ROWS, DEPTH], x.layout)
    weight_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES] + weight.block_type.shape, weight.layout)
    return x_ring, weight_ring


@gluon.jit
def make_staging(COLUMNS: gl.constexpr):
    """Memory by way of which each warp group writes its rows in whole."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLUMNS], gl.bfloat16)
    return gl.allocate_shared_memory(gl.bfloat16, [GROUPS, ROWS, COLUMNS], layout)


@gluon.jit
def place_of(tile, row_blocks, output_blocks):
    """Row and output block of a tile: down the rows first, ``NEAR`` blocks of them."""
    group = tile // (NEAR * output_blocks)
    inside = tile - group * (NEAR * output_blocks)
    size = gl.minimum(row_blocks - group * NEAR, NEAR)
    return group * NEAR + inside % size, inside // size


@gluon.jit
def bring_tiles(x, weight, x_ring, weight_ring, full, empty, K, row_blocks, output_blocks, PAIRED: gl.constexpr):
    """The operands of all tiles of this program. ``PAIRED``: the weights are those of ``paired_descriptor``."""
    brought = gl.to_tensor(0)
    for tile in range(gl.program_id(0), row_blocks * output_blocks, gl.num_programs(0)):
        row_block, output_block = place_of(tile, row_blocks, output_blocks)
        for k in range(0, K, DEPTH):
            stage = brought % STAGES
            mbarrier.wait(empty.index(stage), ((brought // STAGES) & 1) ^ 1)
            mbarrier.expect(full.index(stage), GROUPS * x.block_type.nbytes + weight.block_type.nbytes)
            for i in gl.static_range(GROUPS):
                at = (row_block * GROUPS + i) * ROWS
                copy_in(x, [at, k], full.index(stage), x_ring.index(stage * GROUPS + i))
            if PAIRED:
                copy_in(weight, [0, output_block * (OUTPUTS // 2), k], full.index(stage), weight_ring.index(stage))
            else:
                copy_in(weight, [output_block * OUTPUTS, k], full.index(stage), weight_ring.index(stage))
            brought += 1


@gluon.jit
def multiply_tile(x_ring, weight_ring, full, empty, used, K, MINE: gl.constexpr, layout: gl.constexpr):
    """One warp group's float32 ``[ROWS, OUTPUTS]`` of the next tile, and how many blocks have been used then."""
    sums = gl.zeros([ROWS, OUTPUTS], gl.float32, layout=layout)
    stage = used % STAGES
    mbarrier.wait(full.index(stage), (used // STAGES) & 1)
    weights = weight_ring.index(stage).reshape([OUTPUTS, DEPTH]).permute((1, 0))
    token = warpgroup_mma(x_ring.index(stage * GROUPS + MINE), weights, sums, use_acc=False, is_async=True)
    sums = warpgroup_mma_wait(1, deps=[token])
    used += 1
    for _ in range(DEPTH, K, DEPTH):
        stage = used % STAGES
        mbarrier.wait(full.index(stage), (used // STAGES) & 1)
        weights = weight_ring.index(stage).reshape([OUTPUTS, DEPTH]).permute((1, 0))
        token = warpgroup_mma(x_ring.index(stage * GROUPS + MINE), weights, sums, is_async=True)
        sums = warpgroup_mma_wait(1, deps=[token])
        mbarrier.arrive(empty.index((used - 1) % STAGES), count=1)
        used += 1
    sums = warpgroup_mma_wait(0, deps=[sums])
    mbarrier.arrive(empty.index((used - 1) % STAGES), count=1)
    return sums, used
