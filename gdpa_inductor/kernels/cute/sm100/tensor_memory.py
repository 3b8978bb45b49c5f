"""Order accesses of tensor memory around mbarriers."""

from cutlass import cute
from cutlass.cute.nvgpu import tcgen05

from ..barriers import Mbarriers


@cute.jit
def arrive_when_multiplied(barriers: Mbarriers, place):
    """Arrive when all products issued so far are complete. The product warp calls it."""
    with cute.arch.elect_one():
        tcgen05.commit(barriers.at(place))


def scores_ready() -> None:
    """Call it after a wait: accesses of tensor memory come after what was waited for."""
    cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")


def scores_done(stored: bool) -> None:
    """Call it before an arrival: loads or stores of tensor memory by this thread come before it."""
    if stored:
        cute.arch.fence_view_async_tmem_store()
    else:
        cute.arch.fence_view_async_tmem_load()
    cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")
