"""The Hopper backward, as PTX for sm_90a on the emulator: the error rule, exact integers, poison.

One CTA takes all tiles, for those of a head wait for each other. Each warp runs by itself: the
warps of dQ wait at barriers of their own.
"""

import dataclasses

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute import launch
from gdpa_inductor.kernels.cute.backward import launch as backward_launch
from gdpa_inductor.kernels.cute.backward.launch import backward
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from tests.emulator import recording, run

from .cute_backward_cases import (
    CASES,
    CAUSAL,
    Case,
    Problem,
    check_errors,
    check_integers,
    check_neighbours,
    make_call,
)
from .cute_memory import Memory, tables
from .marks import slow_but
from .test_cute_stored_biases import LAST

MORE = {
    "head dim 128, many steps": Case(rows=640, keys=260, heads=1, key_heads=1, dims=(128, 128)),
    "head dim 128, causal, tails": Case(
        CAUSAL, heads=1, key_heads=1, rows=300, keys=300, dims=(128, 128)
    ),
    "a bias of rows": Case(
        "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.1),a0))", rows=136, keys=264, dims=(128, 128)
    ),
}  # fmt: skip
EVERY = CASES | MORE
FAST = {"tails, grouped heads", "jagged", "causal sigmoid", "a bias of rows", "shared seeds"}


@pytest.fixture(scope="module", autouse=True)
def fresh():
    """Kernels of elsewhere were not recorded."""
    for cache in (launch.compiled, launch.launcher):
        cache.cache_clear()
    yield
    for cache in (launch.compiled, launch.launcher):
        cache.cache_clear()


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch):
    """dQ, dK, dV. All memory that the call asks for is NaN before. noted: gets the addresses that
    were prefetched."""

    def call(
        case: Case, problem: Problem, seeds=(0,), ordered: bool = True, noted: set | None = None
    ) -> list[torch.Tensor]:
        memory, results = Memory(1 << 24), []
        monkeypatch.setattr(backward_launch, "empty", memory.empty)
        monkeypatch.setattr(backward_launch, "longest_first", lambda *_: problem.order)
        o = problem.operands

        def step() -> None:
            memory.used = room.used = 0
            needs = (True,) * 3 + (False,) * len(o.aux)
            options = {"fast": case.fast, "ordered": ordered, "ctas": 1, "stream": 0}
            arguments = backward(problem.grad_out, o, needs, kind=Sm90Config, **options)
            results.append([x.clone() for x in arguments])

        known = (*problem.matrices, *o.aux, *problem.offsets, problem.order, memory.bytes)
        for seed in seeds:
            with recording(), tables() as room:
                read = (*known, room.bytes)
                report = run(step, read, schedules=("random",), seed=seed, strict=False)
            assert not [x for x in report.warnings if x not in LAST]
            if noted is not None:
                noted |= report.prefetched
        first, *others = results
        assert all(torch.equal(a, b) for other in others for a, b in zip(first, other))
        return first

    return call


@pytest.mark.parametrize("name", slow_but(FAST, EVERY))
def test_gradients_obey_the_error_rule(name: str, emulated) -> None:
    case = EVERY[name]
    call = make_call(case)
    check_errors(emulated(case, call), case, call)


def test_gradients_lie_as_their_operands(emulated) -> None:
    """Heads of a projection [B,N,H·D]: its gradient is a view of theirs."""
    case, plain = CASES["tails, grouped heads"], make_call(CASES["tails, grouped heads"])
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in plain.matrices[:3])
    operands = dataclasses.replace(plain.operands, query=q, key=k, value=v)
    results = emulated(case, dataclasses.replace(plain, operands=operands))
    check_errors(results, case, plain)
    for gradient, operand in zip(results, (q, k, v)):
        assert gradient.stride() == operand.stride() and gradient.transpose(1, 2).is_contiguous()


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_every_order_of_warps_gives_the_same_bits(name: str, emulated) -> None:
    emulated(EVERY[name], make_call(EVERY[name]), seeds=range(6))


def test_sums_in_any_order(emulated) -> None:
    case = dataclasses.replace(CASES["tails, grouped heads"], dims=(128, 64))
    call = make_call(case)
    check_errors(emulated(case, call, ordered=False), case, call)


@pytest.mark.parametrize("dims", [(96, 128), (64, 32)], ids=str)
def test_the_next_tile_comes_ahead(dims: tuple[int, int], emulated) -> None:
    """One CTA takes all key tiles, the last keys first: all but the first of them come ahead, and
    the two query tiles that each head begins with."""
    case = Case(rows=200, keys=260, batch=2, heads=1, key_heads=1, dims=dims)
    call, noted = make_call(case), set[int]()
    check_errors(emulated(case, call, noted=noted), case, call)
    o, streamed = call.operands, 2 * (96 if max(dims) <= 64 else 64)
    wanted = set[int]()
    for batch, keys in enumerate((256, case.keys)):
        for x, rows in ((o.key, keys), (o.value, keys), (o.query, streamed)):
            wanted |= lines(x[batch, 0, :rows])
        wanted |= lines(call.grad_out[batch, 0, :streamed])
    assert noted == wanted


def lines(rows: torch.Tensor) -> set[int]:
    """Where lines of 128 bytes are asked for, row by row."""
    begins = range(0, rows.shape[1], 64)
    return {rows[i, j:].data_ptr() for i in range(len(rows)) for j in begins}


@pytest.mark.parametrize("dims", [(64, 32), (128, 128)], ids=str)
def test_integers_come_out_exactly(dims: tuple[int, int], emulated) -> None:
    check_integers(emulated, dims)


def test_neighbours_do_not_leak(emulated) -> None:
    check_neighbours(emulated)
