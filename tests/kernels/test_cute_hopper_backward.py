"""The Hopper backward, as PTX for sm_90a on the emulator: the error rule, integers, poison."""

import dataclasses
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

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
from .cute_memory import fresh_kernels, gradients
from .marks import slow_but

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


fresh = pytest.fixture(scope="module", autouse=True)(fresh_kernels)


def emulated(case: Case, call: Problem, **options: Any) -> list[torch.Tensor]:
    """dQ, dK and dV. options: see `cute_memory.gradients`."""
    o = call.operands
    needs, options = (True,) * 3 + (False,) * len(o.aux), {"fast": case.fast, "ctas": 1, **options}
    return gradients(call.grad_out, o, needs, call.order, **options)


@pytest.mark.parametrize("name", slow_but(FAST, EVERY))
def test_gradients_obey_the_error_rule(name: str) -> None:
    case = EVERY[name]
    call = make_call(case)
    check_errors(emulated(case, call), case, call)


def test_gradients_lie_as_their_operands() -> None:
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
def test_every_order_of_warps_gives_the_same_bits(name: str) -> None:
    emulated(EVERY[name], make_call(EVERY[name]), seeds=range(6))


def test_sums_in_any_order() -> None:
    case = dataclasses.replace(CASES["tails, grouped heads"], dims=(128, 64))
    call = make_call(case)
    check_errors(emulated(case, call, ordered=False), case, call)


@pytest.mark.parametrize("dims", [(96, 128), (64, 32)], ids=str)
def test_the_next_tile_comes_ahead(dims: tuple[int, int]) -> None:
    """One CTA takes all key tiles, the last keys first: all but the first of them come ahead, and
    the two query tiles that each head begins with."""
    case = Case(rows=300, keys=260, batch=2, heads=1, key_heads=1, dims=dims)
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
def test_integers_come_out_exactly(dims: tuple[int, int]) -> None:
    check_integers(emulated, dims)


def test_neighbours_do_not_leak() -> None:
    check_neighbours(emulated, heads=1, key_heads=1)
