"""Mask tensors in the Hopper kernels, on the card, against the formula in fp64."""

import pytest
import torch

pytest.importorskip("cutlass")
pytestmark = pytest.mark.cuda

from gdpa_inductor.kernels.cute.backward.launch import backward  # noqa: E402
from gdpa_inductor.kernels.cute.launch import forward  # noqa: E402
from tests.gpu.checks import captured, check_bits, hopper, on_card  # noqa: E402, F401
from tests.gpu.test_cute_backward import gradients, poisoned  # noqa: E402
from tests.kernels.cute_backward_cases import Case, check_errors  # noqa: E402
from tests.kernels.cute_cases import check_output  # noqa: E402
from tests.kernels.cute_mask_cases import (  # noqa: E402
    BIASED,
    CASES,
    MASK,
    PADDED,
    PER_HEAD,
    SIGMOID,
    Mask,
    blocks,
    causal,
    holes,
    masked,
    padding,
    short,
)

WIDE = {"dims": (128, 128)}
LONG: dict[str, tuple[Case, tuple[Mask, ...]]] = {
    "many tiles, causal": (Case(MASK, 2, 4, 4, rows=1300, keys=1300, **WIDE), (causal,)),
    "many tiles, blocks": (Case(SIGMOID, 2, 4, 2, rows=1300, keys=1500, **WIDE), (blocks,)),
    "many tiles, blocks, head dim 64": (Case(SIGMOID, 2, 4, 4, rows=1300, keys=1500), (blocks,)),
    "many tiles, a mask for each head": (
        Case(PER_HEAD, 2, 4, 4, rows=900, keys=1100, **WIDE), (blocks,)
    ),
    "many tiles, holes": (Case(MASK, 4, 4, 4, rows=1300, keys=700, **WIDE), (holes,)),
    "many tiles, padding": (Case(PADDED, 2, 4, 4, rows=1300, keys=1300, **WIDE), (padding,)),
    "many tiles, causal, with a bias": (
        Case(BIASED, 2, 4, 4, rows=700, keys=700, **WIDE), (causal, torch.randn)
    ),
}  # fmt: skip
EVERY = CASES | LONG


def output(case: Case, call) -> torch.Tensor:
    o = call.operands
    there = on_card(o)
    with poisoned():
        return forward(there, fast=case.fast).cpu()


@pytest.mark.parametrize("name", EVERY)
def test_the_error_rule(name: str) -> None:
    """By as many CTAs as there are multiprocessors, and by few, that take many tiles each."""
    case, masks = EVERY[name]
    call = masked(case, masks)
    check_output(output(case, call), call.operands)
    for ctas in (0, case.ctas):
        check_errors(gradients(case, call, ctas), case, call)


@pytest.mark.parametrize("name", LONG)
def test_the_same_bits_each_time(name: str) -> None:
    case, masks = LONG[name]
    call = masked(case, masks)
    check_bits(lambda: gradients(case, call))


def test_any_order_of_sums() -> None:
    case, masks = LONG["many tiles, blocks"]
    call = masked(case, masks)
    check_errors(gradients(case, call, 0, False), case, call)


def test_hidden_tiles_are_not_computed() -> None:
    """Keys and values behind the last that any query sees are NaN."""
    case, _ = LONG["many tiles, holes"]
    call = masked(case, (short,))
    o = call.operands
    clean = (output(case, call), *gradients(case, call))
    for matrix in (o.key, o.value):
        matrix[:, :, 128:] = torch.nan
    for before, after in zip(clean, (output(case, call), *gradients(case, call)), strict=True):
        assert torch.equal(before, after)


def test_a_mask_that_changes_under_a_cuda_graph() -> None:
    """Nothing about the mask is read on the host."""
    case = Case(MASK, 1, 2, 2, rows=700, keys=700, **WIDE)
    calls = [masked(case, (mask,)) for mask in (causal, holes)]
    o = calls[0].operands
    there = on_card(o)
    grad = calls[0].grad_out.cuda()

    def step() -> list[torch.Tensor]:
        return [forward(there), *backward(grad, there, (True,) * 3)]

    step()
    graph, results = captured(step)
    for call in calls:
        there.aux[0].copy_(call.operands.aux[0])
        graph.replay()
        assert all(map(torch.equal, results, step()))
