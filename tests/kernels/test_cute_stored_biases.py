"""Gradients of biases on Blackwell and Hopper, dense and jagged, on the emulator, on integers.

Every product and every sum is exact, so a wrong index is a wrong bit.

A call runs as it would on the card: the kernels of both sides, launch by launch, and the sums.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.kernels.cute.sm100.config import BOTH, Sm100Config
from gdpa_inductor.operands import Operands
from tests.kernels.cute_account import backward_binary
from tests.kernels.cute_mask_cases import blocks

from . import cute_backward_cases
from .cute_backward_cases import exact, make_call
from .cute_kinds import OneKernel, TwoKernels
from .cute_memory import fresh_kernels, gradients
from .marks import slow_but

BF16, FP32 = torch.bfloat16, torch.float32
ADDED = "relu(add(mul(s,0.5),a0))"
CAUSAL = f"where(le(kv_idx,q_idx),{ADDED},0.0)"


@dataclasses.dataclass(frozen=True)
class Case(cute_backward_cases.Case):
    """room: bytes for the scores that are stored."""

    batch: int = 2
    key_heads: int = 1
    dims: tuple[int, int] = (16, 8)
    bias: torch.dtype = BF16
    room: int = 256 << 20

    def call(self) -> tuple[Tensor, Operands[Tensor]]:
        """Small integers."""
        problem = make_call(self, draw=signs)
        o = problem.operands
        aux = [torch.randint(-2, 3, x.shape).to(self.bias) for x in o.aux]
        return problem.grad_out, dataclasses.replace(o, aux=aux, scalars=())


def signs(shape: Sequence[int]) -> Tensor:
    """-1, 0 and 1, mostly 0."""
    return (torch.randint(-1, 2, shape) * (torch.rand(shape) < 0.5)).float()


def of(body: str, *access: str, **fields: Any) -> Case:
    """access: of the biases."""
    declared = [f"a{i}:f[{each}]" for i, each in enumerate(access)]
    return Case("; ".join([*declared, body]), **fields)


JAGGED = {"rows": (140, 0, 37, 1), "keys": (140, 0, 37, 1)}
CROSS = {"rows": (150, 20, 0, 30), "keys": (90, 0, 40, 139), "most": (135, 133)}
HEADS = "h,q_idx,kv_idx"
CASES = {
    "of each score": of(ADDED, "b,h,q_idx,kv_idx", rows=140, keys=136),
    "of each score, tails": of(ADDED, "b,h,q_idx,kv_idx", rows=30, keys=139),
    "of heads": of(ADDED, HEADS, rows=140, keys=136, key_heads=2),
    "of positions, in fp32": of(ADDED, "q_idx,kv_idx", rows=40, keys=150, bias=FP32),
    "of batches, head by head": of(
        ADDED, "b,-,q_idx,kv_idx", rows=40, keys=136, key_heads=2, room=1
    ),
    "under a mask, batch by batch": of(CAUSAL, HEADS, rows=140, keys=300, room=1),
    "of keys": of(ADDED, "b,kv_idx", rows=40, keys=70),
    "shared keys": of(ADDED, HEADS, rows=40, keys=72, shared="k"),
    "jagged, of each score": of(ADDED, "b,h,q_idx,kv_idx", **JAGGED),
    "jagged, of heads": of(ADDED, HEADS, **JAGGED, room=1),
    "jagged, of batches, causal": of(CAUSAL, "b,-,q_idx,kv_idx", **JAGGED),
    "jagged, of heads, causal": of(CAUSAL, HEADS, **CROSS, room=1, bias=FP32),
    "jagged, of keys and queries": of(
        "relu(add(add(s,a0),a1))", "h,kv_idx", "b,q_idx", **CROSS, bias=FP32
    ),
    "jagged, of tokens": of(ADDED, "q,h", **JAGGED),
    "jagged, of heads alone": of(ADDED, "h", **CROSS, bias=FP32),
    "jagged, a scalar": of(ADDED, "", **JAGGED, bias=FP32),
    "jagged queries": of(ADDED, HEADS, rows=(140, 0, 37), keys=70),
    "jagged keys, shared queries": of(
        CAUSAL, HEADS, rows=70, keys=(140, 0, 37), shared="q", key_heads=2
    ),
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A backward on the emulator."""

    config: type
    # Those that add dQ in turn wait for each other, and the emulator has one, or a pair, at a time.
    ctas: int = 1
    schedule: str = "random"
    head_dim: int = 16

    def of(self, case: Case) -> Case:
        return dataclasses.replace(case, dims=(self.head_dim, 8))

    def __call__(
        self, case: Case, grad: Tensor, o: Operands[Tensor], needs: Sequence[bool]
    ) -> list[Tensor]:
        order = torch.arange(case.sizes[0]).flip(0) if o.jagged else None
        options = {"kind": self.config, "ctas": self.ctas, "schedule": self.schedule}
        return gradients(grad, o, needs, order, room=case.room, **options)


KINDS = {
    "two kernels": Kind(TwoKernels, 2, "lazy"),
    "one kernel": Kind(OneKernel),
    "a pair of CTAs": Kind(OneKernel, head_dim=72),
    "sm90": Kind(Sm90Config),
}
fresh = pytest.fixture(scope="module", autouse=True)(fresh_kernels)


@pytest.fixture(params=KINDS)
def emulated(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


FAST = {
    "of each score, tails", "of batches, head by head", "under a mask, batch by batch",
    "jagged, of heads", "jagged, of heads, causal", "jagged, of keys and queries",
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(FAST, CASES))
def test_gradients(name: str, emulated) -> None:
    case = emulated.of(CASES[name])
    grad, o = case.call()
    check(case, grad, o, (True,) * len(o.differentiable), emulated)


def check(case: Case, grad: Tensor, o: Operands[Tensor], needs: Sequence[bool], emulated) -> None:
    for mine, truth in zip(emulated(case, grad, o, needs), exact(grad, o, needs), strict=True):
        assert truth.any() and truth.isfinite().all()
        assert mine.is_contiguous()
        assert torch.equal(mine, truth.to(mine.dtype))


@pytest.mark.parametrize("rows", [70, (70, 40)], ids=["dense", "jagged"])
def test_only_the_gradient_of_a_bias(rows, emulated) -> None:
    """Of two kernels, that of the keys is not launched."""
    case = emulated.of(of(ADDED, HEADS, rows=rows, keys=rows))
    grad, o = case.call()
    check(case, grad, o, (False, False, False, True), emulated)


DENSE, RAGGED = (200, 300), ((200, 0, 70), (270, 0, 140))


@pytest.mark.parametrize(
    ("sizes", "room"),
    [
        pytest.param(DENSE, 256 << 20, id="dense, at once"),
        pytest.param(DENSE, 1, id="dense, in parts", marks=pytest.mark.slow),
        pytest.param(RAGGED, 256 << 20, id="jagged, at once", marks=pytest.mark.slow),
        pytest.param(RAGGED, 1, id="jagged, in parts"),
    ],
)
def test_under_a_mask_tensor(sizes, room: int, emulated) -> None:
    """Where it hides whole tiles, nothing is stored."""
    program, (rows, keys) = f"where(gt(a1,0.0),{ADDED},0.0)", sizes
    case = of(program, HEADS, "-,-,q_idx,kv_idx", rows=rows, keys=keys, room=room, batch=1)
    case = emulated.of(case)
    grad, o = case.call()
    o.aux[1].copy_(blocks(o.aux[1].shape))
    check(case, grad, o, (True,) * 4 + (False,), emulated)


def test_infinity_in_a_sequence_changes_no_bit_elsewhere(emulated) -> None:
    """Past its ends it adds nothing: what lies there is zero times infinity."""
    case = emulated.of(of(ADDED, HEADS, rows=(100, 30, 140), keys=(100, 30, 140)))
    grad, o = case.call()
    needs = (False, False, False, True)
    (clean,) = emulated(case, grad, o, needs)
    for x in (grad, o.value):
        x[100:130] = float("inf")
    (result,) = emulated(case, grad, o, needs)
    outside = torch.ones_like(result, dtype=torch.bool)
    outside[:, :30, :30] = False
    assert torch.equal(result[outside], clean[outside])
    assert not result[~outside].isfinite().all()


@pytest.mark.parametrize("jagged", [False, True], ids=["dense", "jagged"])
@pytest.mark.parametrize(
    ("head_dim", "side"),
    [pytest.param(64, "rows", marks=pytest.mark.slow), (128, "rows"), (64, BOTH), (128, BOTH)],
)
def test_machine_code_where_the_gradient_of_a_bias_is_stored(
    head_dim: int, side: str, jagged: bool
) -> None:
    pytest.importorskip("triton")  # its package has the disassembler
    config = Sm100Config(
        "bfloat16", head_dim, head_dim, f"a0:f[h,q_idx,kv_idx]; {CAUSAL}", ("bfloat16",), jagged,
        jagged, vectors=frozenset([0]), stored=0,
    )  # fmt: skip
    kernel = backward_binary(config, side)
    if side == BOTH:
        assert kernel.stack <= 192, "registers spill"
        assert kernel.count("STG.E.U16") == 64  # a thread has one key
        return
    assert kernel.stack == 0, "registers spill"
    # 64 scores of a thread, 8 at a time. Half a row of dQ, where it was summed and where not.
    assert kernel.count("STG.E.128") == 64 // 8 + 2 * (head_dim // 2) // 8
