"""The Blackwell backward on the emulator: the error rule, exact integers, poison, determinism.

By a kernel for each side, by the one for both, and by that of a pair of CTAs, at wide heads.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute import launch
from gdpa_inductor.kernels.cute.backward import biases
from gdpa_inductor.kernels.cute.backward import launch as backward_launch
from gdpa_inductor.kernels.cute.backward.launch import BackwardCall
from gdpa_inductor.kernels.cute.backward.roots import masked
from gdpa_inductor.kernels.cute.launch import launcher
from gdpa_inductor.kernels.cute.plan import plan_of
from gdpa_inductor.kernels.cute.replay import Record
from gdpa_inductor.kernels.cute.sm100.config import BOTH, COLS, SIDES, Sm100Config
from gdpa_inductor.rejection import GDPAError
from tests.emulator import recording, run
from tests.tolerances import error_of

from .cute_backward_cases import (
    CASES,
    CAUSAL,
    Case,
    Problem,
    check_errors,
    check_integers,
    check_neighbours,
    make_call,
    unfused,
)
from .cute_kinds import OneKernel, TwoKernels
from .cute_memory import gradients, tables
from .marks import slow_but


def emulated(
    case: Case, call: Problem, schedules=("lazy",), sides: Sequence[str] = tuple(SIDES)
) -> list[torch.Tensor]:
    """dQ, dK, dV by the kernels, or those of some sides; what they write holds NaN before.

    One CTA takes all tiles of both sides, for those of a head wait for each other.
    """
    o, results = call.operands, {}
    plan = plan_of(o, case.fast, True, Sm100Config)
    ctas = 1 if BOTH in sides else case.ctas
    backward = BackwardCall(
        plan, o, o, call.grad_out, call.order, ctas, 0, True, Record(fails=True)
    )
    for side in sides:
        letters, config = {**SIDES, BOTH: "kvq"}[side], plan.config.side(side, None)
        with recording():
            start = launcher(config)
        outputs = [backward.room(letter) for letter in letters]
        for letter, tensor in zip(letters, outputs):
            # The host clears a dQ of which both sides may leave out tiles.
            cleared = side == BOTH and letter == "q" and (masked(config) or config.jagged_k)
            _owned(call, letter, tensor, 0.0 if cleared else float("nan"))
        more = _sums(call, config.counters) if side == BOTH else []
        others = (call.grad_out, *more[:1], *outputs, *more[1:])
        with recording(), tables() as room:

            def step(start=start, others=others, room=room) -> None:
                room.used = 0
                backward.tables.clear()
                backward.launch(start, others)

            read = [*call.matrices, *o.aux, *call.offsets, call.order, *outputs, *more, room.bytes]
            run(step, [x for x in read if x is not None], schedules=schedules)
        results |= dict(zip(letters, outputs))
    return [biases.like(results[x], backward.operand(x)) for x in "qkv" if x in results]


def _sums(call: Problem, counters: int) -> list[torch.Tensor]:
    """Memory for the sums of dQ, and the counters, so many of each query tile."""
    query = call.operands.query
    shape = query.shape if query.dim() == 3 else (call.batch, *query.shape[1:])
    tiles = (call.batch, query.shape[1], -(-call.rows // COLS))
    return [torch.full(shape, float("nan")), torch.zeros(*tiles, counters, dtype=torch.int32)]


def _owned(call: Problem, letter: str, tensor: torch.Tensor, value: float) -> None:
    """Fills the rows that kernels write: all of a dense gradient, those of sequences if jagged."""
    cu_q, cu_k = call.offsets
    cu, most = (cu_q, call.rows) if letter == "q" else (cu_k, call.cols)
    if cu is None:
        tensor.fill_(value)
        return
    for start, end in zip(cu.tolist(), cu[1:].tolist()):
        tensor[start : min(end, start + most)] = value


FAST = {
    "tails, grouped heads", "fp16, head dims of 96 and 40", "causal sigmoid", "bias and mask",
    "jagged, gates of tokens", "shared seeds", "a pole past the end",
}  # fmt: skip


class Kernels(NamedTuple):
    """The kernels of a backward, and the least and the most head dim."""

    sides: Sequence[str]
    least: int
    most: int

    def fit(self, case: Case) -> Case:
        head, value = (min(x, self.most) for x in case.dims)
        return dataclasses.replace(case, dims=(head if head > self.least else head + 64, value))


TWO, ONE, PAIR = Kernels(tuple(SIDES), 0, 128), Kernels((BOTH,), 0, 64), Kernels((BOTH,), 64, 128)
with_kernels = pytest.mark.parametrize(
    "kernels", [TWO, ONE, PAIR], ids=["two kernels", "one kernel", "a pair of CTAs"]
)


@with_kernels
@pytest.mark.parametrize("name", slow_but(FAST, CASES))
def test_gradients_obey_the_error_rule(name, kernels):
    case = kernels.fit(CASES[name])
    call = make_call(case)
    check_errors(emulated(case, call, sides=kernels.sides), case, call)


@pytest.mark.slow
@with_kernels
@pytest.mark.parametrize("name", CASES)
def test_every_schedule_of_the_emulator_gives_the_same_bits(name, kernels):
    case = kernels.fit(CASES[name])
    emulated(case, make_call(case), schedules=("lazy", "random", "eager"), sides=kernels.sides)


@with_kernels
def test_integers_come_out_exactly(kernels):
    backward = functools.partial(emulated, schedules=("random",), sides=kernels.sides)
    check_integers(backward, kernels.fit(Case(dims=(64, 32))).dims)


@with_kernels
def test_neighbours_do_not_leak(kernels):
    dims = kernels.fit(Case()).dims
    backward = functools.partial(emulated, sides=kernels.sides)
    check_neighbours(backward, heads=1, key_heads=1, dims=dims)


@with_kernels
def test_infinity_stays_outside_a_mask(kernels):
    """The gradient of a score that the mask leaves out is zero, whatever flows back to it."""
    sides, case = kernels.sides, Case(CAUSAL, heads=1, key_heads=1, rows=130, keys=130)
    case = kernels.fit(case)
    call = make_call(case)
    call.operands.value[..., 100, :] = float("inf")
    results, eager = emulated(case, call, sides=sides), unfused(case, call, case.dtype)
    assert results[0][..., :100, :].isfinite().all()
    for mine, theirs in zip(results, eager, strict=True):
        assert torch.equal(mine.isfinite(), theirs.isfinite())


@with_kernels
def test_offsets_that_decrease_own_nothing(kernels):
    """As in the forward. A count of tiles below zero would upset the order of the barriers."""
    sides, case = kernels.sides, Case(heads=1, key_heads=1, rows=70, keys=(0, 300), ctas=1)
    case = kernels.fit(case)
    call = dataclasses.replace(make_call(case), order=torch.arange(2))
    offsets = torch.tensor([300, 0, 300], dtype=torch.int32)
    operands = dataclasses.replace(call.operands, cu_seqlens_k=offsets)
    decreasing = dataclasses.replace(call, operands=operands)
    pair = [emulated(case, x, sides=sides) for x in (call, decreasing)]
    for empty, negative in zip(*pair, strict=True):
        assert torch.equal(empty, negative)


@pytest.mark.slow
def test_the_number_of_ctas_changes_no_bit():
    case = Case(batch=2, key_heads=1, rows=140, keys=260)
    call = make_call(case)
    alone = emulated(dataclasses.replace(case, ctas=1), call)
    for one, many in zip(alone, emulated(dataclasses.replace(case, ctas=5), call)):
        assert torch.equal(one, many)


def by_one_kernel(case: Case, call: Problem, **options) -> list[torch.Tensor]:
    """As it would run on the card."""
    o = call.operands
    options = {"kind": OneKernel, "ctas": 1, "fast": case.fast, **options}
    needs = (True,) * 3 + (False,) * len(o.aux)
    return gradients(call.grad_out, o, needs, call.order, **options)


@pytest.mark.parametrize("kernels", [ONE, PAIR], ids=["one kernel", "a pair of CTAs"])
@pytest.mark.parametrize("name", ["a mask per head", "short dense keys"])
def test_the_host_clears_what_one_kernel_may_not_write(name, kernels):
    case = kernels.fit(CASES[name])
    call = make_call(case)
    check_errors(by_one_kernel(case, call), case, call)


@pytest.mark.parametrize("kernels", [ONE, PAIR], ids=["one kernel", "a pair of CTAs"])
def test_the_number_of_ctas_changes_no_bit_where_no_tile_waits_for_another(kernels):
    """A pair takes an even number of them."""
    case = kernels.fit(Case(batch=2, heads=4, rows=140, keys=100))
    call = make_call(case)
    alone = by_one_kernel(case, call)
    for one, many in zip(alone, by_one_kernel(case, call, ctas=5), strict=True):
        assert torch.equal(one, many)


@pytest.mark.parametrize("kind", [TwoKernels, OneKernel])
@pytest.mark.parametrize(("letter", "side"), [("q", "rows"), ("k", "keys")])
def test_only_what_is_asked_for_is_launched(letter: str, side: str, kind, monkeypatch):
    case = Case(rows=64, keys=64, heads=1, key_heads=1)
    call, number, launched = make_call(case), "qkv".index(letter), []
    find = launch.launcher
    monkeypatch.setattr(launch, "launcher", lambda c: launched.append(c.kernel) or find(c))
    options = {"kind": kind, "ctas": 1, "schedule": "lazy"}
    needs = [x == letter for x in "qkv"]
    (grad,) = gradients(call.grad_out, call.operands, needs, None, **options)
    assert launched == [side]
    eager, exact = (unfused(case, call, x)[number] for x in (case.dtype, torch.float64))
    assert not error_of(grad, eager, exact, direction="backward")


@pytest.mark.parametrize(
    "spoil", [lambda x: x[..., :-8], lambda x: x.float(), lambda x: x.to("meta")]
)
def test_a_gradient_unlike_the_output_is_refused(spoil):
    call = make_call(Case(rows=64, keys=64))
    with pytest.raises(GDPAError, match="gradient of the output"):
        backward_launch.backward(
            spoil(call.grad_out), call.operands, (True,) * 3, ctas=1, stream=0, kind=Sm100Config
        )
