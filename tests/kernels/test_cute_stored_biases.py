"""Gradients of biases on Blackwell and Hopper, dense and jagged, on the emulator, on integers.

Every product and every sum is exact, so a wrong index is a wrong bit.

A call runs as it would on the card: the kernels of both sides, launch by launch, and the sums. All
memory that it asks for is NaN before.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute import bounds, launch, launcher, plan
from gdpa_inductor.kernels.cute.backward import biases, jagged_biases
from gdpa_inductor.kernels.cute.backward import launch as backward_launch
from gdpa_inductor.kernels.cute.backward.launch import backward
from gdpa_inductor.kernels.cute.sm90.backward.roles import EMPTY
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.kernels.cute.sm100.config import Sm100Config
from gdpa_inductor.operands import Operands
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.reference import reference_backward
from tests.emulator import recording, run
from tests.kernels.cute_account import backward_binary
from tests.kernels.cute_mask_cases import blocks

from .cute_memory import Memory
from .marks import slow_but

BF16, FP32 = torch.bfloat16, torch.float32
ADDED = "relu(add(mul(s,0.5),a0))"
CAUSAL = f"where(le(kv_idx,q_idx),{ADDED},0.0)"


@dataclasses.dataclass(frozen=True)
class Case:
    """Small integers. rows, keys: of every sequence, or the lengths of jagged ones. access: of the
    biases."""

    program: str
    access: tuple[str, ...]
    rows: int | tuple[int, ...]
    keys: int | tuple[int, ...]
    batch: int = 2
    heads: int = 2
    key_heads: int = 1
    most: tuple[int, int] | None = None
    dtype: torch.dtype = BF16
    shared: str = ""
    room: int = 256 << 20
    dims: tuple[int, int] = (16, 8)

    @property
    def sequences(self) -> int:
        sides = (self.rows, self.keys)
        return next((len(x) for x in sides if isinstance(x, tuple)), self.batch)

    def call(self) -> tuple[Tensor, Operands[Tensor]]:
        """Rows that no sequence owns are NaN."""
        lengths = {"q": self.rows, "k": self.keys}
        longest = [max(x) if isinstance(x, tuple) else x for x in lengths.values()]
        most = dict(zip("qk", self.most or longest, strict=True))
        cu = {
            side: torch.tensor([0, *torch.tensor(x).cumsum(0)], dtype=torch.int32)
            for side, x in lengths.items()
            if isinstance(x, tuple)
        }

        def matrix(name: str, side: str, heads: int, width: int) -> Tensor:
            batch = 1 if name in self.shared else self.sequences
            shape = (batch, heads, most[side], width)
            if side in cu:
                shape = (int(cu[side][-1]) + 5, heads, width)
            values = torch.randint(-1, 2, shape) * (torch.rand(shape) < 0.5)
            values = values.to(BF16)
            if side in cu:
                values[-5:] = float("nan")
            return values

        sizes = {"b": self.sequences, "h": self.heads, "q_idx": most["q"], "kv_idx": most["k"]}
        sizes |= {"-": 1, "q": 0, "k": 0} | {x: int(y[-1]) + 5 for x, y in cu.items()}
        shapes = [[sizes[x] for x in each.split(",") if x] for each in self.access]
        aux = [torch.randint(-2, 3, shape).to(self.dtype) for shape in shapes]
        (dim, value_dim), heads = self.dims, (self.heads, self.key_heads)
        q, k = matrix("q", "q", heads[0], dim), matrix("k", "k", heads[1], dim)
        v, grad = matrix("v", "k", heads[1], value_dim), matrix("o", "q", heads[0], value_dim)
        declared = [f"a{i}:f[{each}]" for i, each in enumerate(self.access)]
        program = ScoreMod.parse("; ".join([*declared, self.program]))
        bounds = [most[x] if x in cu else 0 for x in "qk"]
        return grad, Operands(q, k, v, aux, (), program, cu.get("q"), cu.get("k"), *bounds)


JAGGED = {"rows": (140, 0, 37, 1), "keys": (140, 0, 37, 1)}
CROSS = {"rows": (150, 20, 0, 30), "keys": (90, 0, 40, 139), "most": (135, 133)}
CASES = {
    "of each score": Case(ADDED, ("b,h,q_idx,kv_idx",), 140, 136),
    "of each score, tails": Case(ADDED, ("b,h,q_idx,kv_idx",), 30, 139),
    "of heads": Case(ADDED, ("h,q_idx,kv_idx",), 140, 136, key_heads=2),
    "of positions, in fp32": Case(ADDED, ("q_idx,kv_idx",), 40, 150, dtype=FP32),
    "of batches, head by head": Case(ADDED, ("b,-,q_idx,kv_idx",), 40, 136, key_heads=2, room=1),
    "under a mask, batch by batch": Case(CAUSAL, ("h,q_idx,kv_idx",), 140, 300, room=1),
    "of keys": Case(ADDED, ("b,kv_idx",), 40, 70),
    "shared keys": Case(ADDED, ("h,q_idx,kv_idx",), 40, 72, shared="k"),
    "jagged, of each score": Case(ADDED, ("b,h,q_idx,kv_idx",), **JAGGED),
    "jagged, of heads": Case(ADDED, ("h,q_idx,kv_idx",), **JAGGED, room=1),
    "jagged, of batches, causal": Case(CAUSAL, ("b,-,q_idx,kv_idx",), **JAGGED),
    "jagged, of heads, causal": Case(CAUSAL, ("h,q_idx,kv_idx",), **CROSS, room=1, dtype=FP32),
    "jagged, of keys and queries": Case(
        "relu(add(add(s,a0),a1))", ("h,kv_idx", "b,q_idx"), **CROSS, dtype=FP32
    ),
    "jagged, of tokens": Case(ADDED, ("q,h",), **JAGGED),
    "jagged, of heads alone": Case(ADDED, ("h",), **CROSS, dtype=FP32),
    "jagged, a scalar": Case(ADDED, ("",), **JAGGED, dtype=FP32),
    "jagged queries": Case(ADDED, ("h,q_idx,kv_idx",), (140, 0, 37), 70),
    "jagged keys, shared queries": Case(
        CAUSAL, ("h,q_idx,kv_idx",), 70, (140, 0, 37), shared="q", key_heads=2
    ),
}  # fmt: skip


# Hopper's warps of dQ free their buffer behind the last part too.
LAST = [f"bar {i} (32 of 160 threads arrived) at exit" for i in (EMPTY, EMPTY + 1)]
# How many CTAs: those of Hopper wait for each other, and the emulator has one at a time. Its warps
# of dQ wait at barriers of their own, so each runs by itself.
KINDS = {"sm100": (Sm100Config, 2, "lazy"), "sm90": (Sm90Config, 1, "random")}
CACHES = (launch.compiled, launch.launcher, launcher.word_launcher)


@pytest.fixture(scope="module", autouse=True)
def fresh() -> Iterator[None]:
    """Kernels of elsewhere were not recorded."""
    for cache in CACHES:
        cache.cache_clear()
    yield
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture(params=KINDS)
def emulated(request, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Tensor]]:
    """A backward on the emulator."""
    kind, ctas, schedule = KINDS[request.param]
    monkeypatch.setattr(plan, "PLANS", {})

    def call(case: Case, grad: Tensor, o: Operands[Tensor], needs: Sequence[bool]) -> list[Tensor]:
        memory, results = Memory(1 << 24), []
        for module in (biases, jagged_biases, backward_launch, bounds):
            monkeypatch.setattr(module, "empty", memory.empty)
        monkeypatch.setattr(biases, "ROOM", case.room)
        monkeypatch.setattr(jagged_biases, "ROOM", case.room)
        order = torch.arange(case.sequences).flip(0) if o.jagged else None
        monkeypatch.setattr(backward_launch, "longest_first", lambda *_: order)

        def step() -> None:
            memory.used = 0
            results.append(backward(grad, o, needs, ctas=ctas, stream=0, kind=kind))

        copies = Memory(1 << 22)  # unshared operands are copies
        expand = biases.unshared

        def unshared(inputs: Operands[Tensor]) -> Operands[Tensor]:
            copies.used = 0
            results = [
                copies.empty(x.shape, x.dtype, x.device).copy_(x) for x in matrices(expand(inputs))
            ]
            return dataclasses.replace(inputs, query=results[0], key=results[1], value=results[2])

        monkeypatch.setattr(biases, "unshared", unshared)
        read = (grad, *o.differentiable, *o.lengths[:2], order, memory.bytes, copies.bytes)
        with recording():
            report = run(step, read, schedules=[schedule], strict=False)
        assert not [x for x in report.warnings if x not in LAST]
        return results[-1]

    return call


def matrices(o: Operands[Tensor]) -> tuple[Tensor, ...]:
    return o.query, o.key, o.value


def exact(grad: Tensor, o: Operands[Tensor], needs: Sequence[bool]) -> list[Tensor]:
    query, key, value, *aux = (x.double() for x in o.differentiable)
    wide = dataclasses.replace(o, query=query, key=key, value=value, aux=aux)
    return reference_backward(grad.double(), wide, needs)


FAST = {
    "of each score, tails", "of batches, head by head", "under a mask, batch by batch",
    "jagged, of heads", "jagged, of heads, causal", "jagged, of keys and queries",
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(FAST, CASES))
def test_gradients(name: str, emulated) -> None:
    case = CASES[name]
    grad, o = case.call()
    needs = (True,) * len(o.differentiable)
    for mine, truth in zip(emulated(case, grad, o, needs), exact(grad, o, needs), strict=True):
        assert truth.any() and truth.isfinite().all()
        assert mine.is_contiguous()
        assert torch.equal(mine, truth.to(mine.dtype))


@pytest.mark.parametrize("rows", [70, (70, 40)], ids=["dense", "jagged"])
def test_only_the_gradient_of_a_bias(rows, emulated) -> None:
    """The side of the keys is not launched."""
    case = Case(ADDED, ("h,q_idx,kv_idx",), rows, rows)
    grad, o = case.call()
    needs = (False, False, False, True)
    (result,) = emulated(case, grad, o, needs)
    assert torch.equal(result, exact(grad, o, needs)[0].to(result.dtype))


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
    program, access = f"where(gt(a1,0.0),{ADDED},0.0)", ("h,q_idx,kv_idx", "-,-,q_idx,kv_idx")
    case = Case(program, access, *sizes, room=room, batch=1)
    grad, o = case.call()
    o.aux[1].copy_(blocks(o.aux[1].shape))
    needs = (True,) * 4 + (False,)
    for mine, truth in zip(emulated(case, grad, o, needs), exact(grad, o, needs), strict=True):
        assert truth.any() and truth.isfinite().all()
        assert torch.equal(mine, truth.to(mine.dtype))


def test_infinity_in_a_sequence_changes_no_bit_elsewhere(emulated) -> None:
    """Past its ends it adds nothing: what lies there is zero times infinity."""
    case = Case(ADDED, ("h,q_idx,kv_idx",), (100, 30, 140), (100, 30, 140))
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
@pytest.mark.parametrize("head_dim", [pytest.param(64, marks=pytest.mark.slow), 128])
def test_machine_code_where_the_gradient_of_a_bias_is_stored(head_dim: int, jagged: bool) -> None:
    pytest.importorskip("triton")  # its package has the disassembler
    config = Sm100Config(
        "bfloat16", head_dim, head_dim, f"a0:f[h,q_idx,kv_idx]; {CAUSAL}", ("bfloat16",), jagged,
        jagged, vectors=frozenset([0]), stored=0,
    )  # fmt: skip
    kernel = backward_binary(config, "rows")
    assert kernel.stack == 0, "registers spill"
    # 64 scores of a thread, 8 at a time. Half a row of dQ, where it was summed and where not.
    assert kernel.count("STG.E.128") == 64 // 8 + 2 * (head_dim // 2) // 8
