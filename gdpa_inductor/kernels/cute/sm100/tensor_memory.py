"""Products and tensor memory around barriers: what is signalled, and what is ordered."""

from cutlass import cute
from cutlass.cute.nvgpu import tcgen05

from ..barriers import Mbarriers


@cute.jit
def arrive_when_multiplied(barriers: Mbarriers, place):
    """One arrival when all products issued so far are done; by the warp of products."""
    with cute.arch.elect_one():
        tcgen05.commit(barriers.at(place))


def scores_ready() -> None:
    """After a wait, before tensor memory is touched: orders it behind what was waited for."""
    cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")


def scores_done(stored: bool) -> None:
    """Before an arrival: own accesses of tensor memory are over."""
    if stored:
        cute.arch.fence_view_async_tmem_store()
    else:
        cute.arch.fence_view_async_tmem_load()
    cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")
