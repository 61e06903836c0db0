"""What Gluon kernels bring blocks into shared memory with: bulk copies, and barriers that count them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


@gluon.jit
def make_barriers(arrivals: gl.constexpr, count: gl.constexpr):
    """``count`` barriers, each passed after so many arrivals."""
    layout: gl.constexpr = mbarrier.MBarrierLayout()
    barriers = gl.allocate_shared_memory(gl.int64, [count, 1], layout)
    for i in gl.static_range(count):
        mbarrier.init(barriers.index(i), count=arrivals)
    return barriers
