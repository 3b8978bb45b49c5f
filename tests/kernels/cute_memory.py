"""Backwards on the emulator, and the memory that calls ask for there."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from gdpa_inductor.kernels.cute import bounds, launch, launcher, plan
from gdpa_inductor.kernels.cute.backward import biases, jagged_biases, table_gradients
from gdpa_inductor.kernels.cute.backward import launch as backward_launch
from gdpa_inductor.kernels.cute.launcher import word_launcher
from gdpa_inductor.kernels.cute.sm90.backward.roles import EMPTY
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.operands import Operands
from tests.emulator import recording, run


class Memory:
    """What calls ask for, from one tensor, the same again in each run; at multiples of 256 bytes,
    as on a device."""

    def __init__(self, size: int) -> None:
        room = torch.zeros(size + 256, dtype=torch.uint8)
        self.bytes = room[-room.data_ptr() % 256 :][:size]
        self.used = 0

    def empty(self, size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        count = torch.Size(size).numel()
        first, self.used = self.used, self.used + -(-count * dtype.itemsize // 256) * 256 + 256
        assert self.used <= len(self.bytes)
        result = self.bytes[first : first + count * dtype.itemsize].view(dtype).view(tuple(size))
        return result.fill_(float("nan") if dtype.is_floating_point else 1 << 20)


# Of kernels that were compiled while they were recorded; those of elsewhere were not.
_recorded_launcher = functools.cache(word_launcher.__wrapped__)


@contextmanager
def tables() -> Iterator[Memory]:
    """All tables of bounds lie in one tensor. For calls that are recorded."""
    room = Memory(1 << 18)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "empty", room.empty)
        patch.setattr(bounds, "word_launcher", _recorded_launcher)
        yield room


def fresh_kernels() -> Iterator[None]:
    """A fixture of a module: kernels of elsewhere were not recorded."""
    caches = (launch.compiled, launch.launcher, launcher.word_launcher)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


# Hopper's warps of dQ free their buffer behind the last part too.
LAST = [f"bar {i} (32 of 160 threads arrived) at exit" for i in (EMPTY, EMPTY + 1)]


def gradients(
    grad: Tensor,
    o: Operands[Tensor],
    needs: Sequence[bool],
    order: Tensor | None,
    *,
    schedule: str = "random",
    seeds: Sequence[int] = (0,),
    room: int = biases.ROOM,
    noted: set[int] | None = None,
    kind: type = Sm90Config,
    **options: Any,
) -> list[Tensor]:
    """Of a call, as it would run on the card; the same with every seed. All memory that it asks for
    is NaN before.

    One CTA takes all tiles of Hopper, for those of a head wait for each other. Each warp runs by
    itself: the warps of dQ wait at barriers of their own. order: of the sequences. room: bytes for
    the scores that are stored. noted: gets the addresses that were prefetched.
    """
    memory, copies = Memory(1 << 24), Memory(1 << 22)  # unshared operands are copies
    results: list[list[Tensor]] = []
    expand = biases.unshared

    def unshared(inputs: Operands[Tensor]) -> Operands[Tensor]:
        copies.used = 0
        wide = expand(inputs)
        query, key, value = (
            copies.empty(x.shape, x.dtype, x.device).copy_(x)
            for x in (wide.query, wide.key, wide.value)
        )
        return dataclasses.replace(inputs, query=query, key=key, value=value)

    def step() -> None:
        memory.used = tables_room.used = 0
        made = backward_launch.backward(grad, o, needs, kind=kind, stream=0, **options)
        results.append([x.clone() for x in made])

    with pytest.MonkeyPatch.context() as patch, recording(), tables() as tables_room:
        patch.setattr(plan, "PLANS", {})
        for module in (biases, jagged_biases, table_gradients, backward_launch):
            patch.setattr(module, "empty", memory.empty)
        for module in (biases, jagged_biases):
            patch.setattr(module, "ROOM", room)
        patch.setattr(biases, "TABLE_ROOM", min(room, biases.TABLE_ROOM))
        patch.setattr(biases, "unshared", unshared)
        patch.setattr(backward_launch, "longest_first", lambda *_: order)
        known = (grad, *o.differentiable, *o.lengths[:2], order)
        read = (*known, memory.bytes, copies.bytes, tables_room.bytes)
        for seed in seeds:
            report = run(step, read, schedules=[schedule], seed=seed, strict=False)
            assert not [x for x in report.warnings if x not in LAST]
            if noted is not None:
                noted |= report.prefetched
    first, *others = results
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
    return first
