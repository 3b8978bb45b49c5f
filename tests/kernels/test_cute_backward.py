"""The Blackwell backward on the emulator: the error rule, exact integers, poison, determinism."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.plan import plan_of
from gdpa_inductor.kernels.cute.sm100.backward import launch as backward_launch
from gdpa_inductor.kernels.cute.sm100.backward.launch import SIDES
from gdpa_inductor.kernels.cute.sm100.backward.limits import unsupported
from gdpa_inductor.kernels.cute.sm100.config import Sm100Config
from gdpa_inductor.operands import Operands
from gdpa_inductor.program.expr import fold, torch_apply
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.reference import program_leaves
from tests.emulator import recording, run
from tests.tolerances import error_of

SILU = "silu(mul(s,0.125))"
CAUSAL = "where(le(kv_idx,q_idx),sigmoid(mul(s,0.125)),0.0)"
BIASED = "a0:f[b,h,q_idx,kv_idx]; a1:b[b,-,-,kv_idx]; where(a1,silu(add(mul(s,0.125),a0)),0.0)"
PER_HEAD = "a0:i[h]; where(lt(kv_idx,a0),silu(mul(s,0.125)),0.0)"
POLE = "where(eq(s,0.0),div(1.0,s),silu(mul(s,0.125)))"  # scores past the end are 0
TOKENS = "a0:f[q]; a1:f[k]; mul(silu(mul(s,0.125)),mul(a0,a1))"


@dataclass(frozen=True)
class Case:
    """rows, keys: of every sequence, or the lengths of jagged ones. shared: operands of batch 1."""

    program: str = SILU
    batch: int = 1
    heads: int = 2
    key_heads: int = 2
    rows: int | tuple[int, ...] = 256
    keys: int | tuple[int, ...] = 256
    dims: tuple[int, int] = (64, 64)
    dtype: torch.dtype = torch.bfloat16
    shared: str = ""
    most: tuple[int, int] | None = None
    fast: bool = True
    ctas: int = 2
    offsets: torch.dtype = torch.int32

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The batch, and the most rows and keys of a sequence."""
        sides = (self.rows, self.keys)
        batch = next((len(x) for x in sides if isinstance(x, tuple)), self.batch)
        longest = [max(x) if isinstance(x, tuple) else x for x in sides]
        return batch, *(self.most or longest)


@dataclass(frozen=True)
class Problem:
    """A call, the gradient of its output, and the order in which sequences are dealt. batch, rows,
    cols: the sequences, and the most rows and keys of one."""

    operands: Operands[torch.Tensor]
    grad_out: torch.Tensor
    order: torch.Tensor | None
    batch: int
    rows: int
    cols: int

    @property
    def matrices(self) -> tuple[torch.Tensor, ...]:
        return *self.operands.differentiable[:3], self.grad_out

    @property
    def offsets(self) -> tuple[torch.Tensor | None, ...]:
        return self.operands.lengths[:2]


def make_call(case: Case, integers: bool = False) -> Problem:
    """Operands of a case; what lies past the last jagged sequence is NaN."""
    torch.manual_seed(0)
    (batch, rows, cols), (dim, value_dim) = case.sizes, case.dims
    cu_q, cu_k = (_offsets(side, case.offsets) for side in (case.rows, case.keys))

    def matrix(name: str, side: object, cu: torch.Tensor | None, heads: int, width: int):
        if cu is None:
            shape = (1 if name in case.shared else batch, heads, side, width)
        else:
            shape = (int(cu[-1]) + 9, heads, width)
        values = torch.randint(-2, 3, shape).double() if integers else torch.randn(shape)
        if cu is not None:
            values[int(cu[-1]) :] = float("nan")
        return values.to(case.dtype)

    q = matrix("q", case.rows, cu_q, case.heads, dim)
    k = matrix("k", case.keys, cu_k, case.key_heads, dim)
    v = matrix("v", case.keys, cu_k, case.key_heads, value_dim)
    grad = matrix("o", case.rows, cu_q, case.heads, value_dim)
    sizes = {"b": batch, "h": case.heads, "q_idx": rows, "kv_idx": cols, "-": 1, "q": 0, "k": 0}
    sizes |= {"q": q.shape[0]} if cu_q is not None else {}
    sizes |= {"k": k.shape[0]} if cu_k is not None else {}
    draw = {
        "f": torch.randn,
        "b": lambda shape: torch.rand(shape) < 0.7,
        "i": lambda shape: torch.randint(0, cols, shape),
    }
    program = ScoreMod.parse(case.program)
    aux = [draw[spec.kind]([sizes[x] for x in spec.access]) for spec in program.aux]
    order = None if cu_q is None and cu_k is None else torch.arange(batch).flip(0)
    operands = Operands(q, k, v, aux, (64,), program, cu_q, cu_k, rows, cols)
    return Problem(operands, grad, order, batch, rows, cols)


def _offsets(lengths: object, dtype: torch.dtype) -> torch.Tensor | None:
    if not isinstance(lengths, tuple):
        return None
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=dtype)


def emulated(
    case: Case, call: Problem, schedules=("random",), sides: Sequence[str] = tuple(SIDES)
) -> list[torch.Tensor]:
    """dQ, dK, dV by the kernels, or those of some sides; what they write holds NaN before."""
    o, found = call.operands, {}
    plan = plan_of(o, case.fast, True, Sm100Config)
    for side in sides:
        letters = SIDES[side]
        with recording():
            start = backward_launch.launcher(plan.config, side)
        outputs = [backward_launch.room(plan, o, letter) for letter in letters]
        for letter, tensor in zip(letters, outputs):
            _owned(call, letter, tensor, float("nan"))
        others = (call.grad_out, *outputs)
        read = [*call.matrices, *o.aux, *call.offsets, call.order, *outputs]
        words = plan.call_words(o, others, call.order, case.ctas, 0), plan.form_words(others)
        run(
            lambda start=start, words=words: start(*words),
            [tensor for tensor in read if tensor is not None],
            schedules=schedules,
        )
        found |= dict(zip(letters, outputs))
    return [backward_launch.finished(o, x, found[x]) for x in "qkv" if x in found]


def _owned(call: Problem, letter: str, tensor: torch.Tensor, value: float) -> None:
    """Fills the rows that kernels write: all of a dense gradient, those of sequences if jagged."""
    cu_q, cu_k = call.offsets
    cu, most = (cu_q, call.rows) if letter == "q" else (cu_k, call.cols)
    if cu is None:
        tensor.fill_(value)
        return
    for start, end in zip(cu.tolist(), cu[1:].tolist()):
        tensor[start : min(end, start + most)] = value


def unfused(case: Case, call: Problem, dtype: torch.dtype) -> list[torch.Tensor]:
    """The gradients by autograd of the plain formula, sequence by sequence, in `dtype`."""
    cu_q, cu_k = call.offsets
    leaves = [t.detach().to(dtype).requires_grad_() for t in call.matrices[:3]]
    total = [torch.zeros_like(leaf) for leaf in leaves]
    for b in range(call.batch):
        q, k, v = (
            _sequence(leaf, cu, b, most)
            for leaf, cu, most in zip(leaves, (cu_q, cu_k, cu_k), (call.rows, call.cols, call.cols))
        )
        if 0 in (q.shape[1], k.shape[1]):
            continue
        k, v = (x.repeat_interleave(case.heads // case.key_heads, 0) for x in (k, v))
        out = _weights(case, call, b, q @ k.mT) @ v
        grad = _sequence(call.grad_out.to(dtype), cu_q, b, call.rows)
        parts = torch.autograd.grad(out, leaves, grad)
        total = [sum_ + part for sum_, part in zip(total, parts)]
    return total


def _sequence(tensor: torch.Tensor, cu, b: int, most: int) -> torch.Tensor:
    """[H, n, D] of one sequence."""
    if cu is None:
        return tensor[b % tensor.shape[0]]
    start, end = int(cu[b]), int(cu[b + 1])
    return tensor[start : min(end, start + most)].transpose(0, 1)


def _weights(case: Case, call: Problem, b: int, score: torch.Tensor) -> torch.Tensor:
    """The program of one sequence, [H, n, m]."""
    program = ScoreMod.parse(case.program)
    (heads, n, m), aux = score.shape, []
    for tensor, spec in zip(call.operands.aux, program.aux):
        for axis, letter in enumerate(spec.access):
            size, start = {"q_idx": (n, 0), "kv_idx": (m, 0), "b": (1, b)}.get(letter, (None, 0))
            if letter in "qk":
                cu, size = (call.offsets[0], n) if letter == "q" else (call.offsets[1], m)
                start = int(cu[b])
            if size is not None:
                tensor = tensor.narrow(axis, start, size)
        aux.append(tensor)
    dense = dataclasses.replace(
        program,
        aux=tuple(
            dataclasses.replace(
                x, access=tuple({"q": "q_idx", "k": "kv_idx"}.get(a, a) for a in x.access)
            )
            for x in program.aux
        ),
    )
    leaf = program_leaves(score[None], aux, call.operands.scalars, dense)
    (weight,) = fold([dense.weight], leaf, torch_apply(score.dtype))
    return weight.expand(1, heads, n, m)[0]


CASES = {
    "one tile": Case(rows=128, keys=128, ctas=1),
    "many steps, two tiles a CTA": Case(rows=896, keys=256, heads=1, key_heads=1, ctas=1),
    "tails, grouped heads": Case(batch=2, key_heads=1, rows=140, keys=150, ctas=3),
    "fp16, head dims of 96 and 40": Case(
        "gelu_tanh(mul(s,0.1))", rows=130, keys=257, dims=(96, 40), dtype=torch.float16
    ),
    "head dim 128, squared relu": Case(
        "pow(relu(mul(s,0.125)),2.0)", rows=300, keys=150, heads=1, key_heads=1, dims=(128, 128)
    ),
    "causal sigmoid": Case(
        CAUSAL, heads=1, key_heads=1, rows=300, keys=300, dims=(128, 72)
    ),
    "bias and mask": Case(BIASED, rows=70, keys=140),
    "full accuracy": Case("gelu(mul(s,0.125))", key_heads=1, rows=64, keys=100, fast=False),
    "jagged": Case(rows=(200, 0, 130, 1), keys=(200, 0, 130, 1), ctas=3),
    "jagged, cut short, grouped heads, 64-bit offsets": Case(
        "sigmoid(mul(s,0.125))", heads=4, rows=(150, 40, 0, 300), keys=(100, 0, 50, 129),
        most=(260, 129), offsets=torch.int64, ctas=3,
    ),
    "jagged causal": Case(
        CAUSAL, heads=1, key_heads=1, rows=(150, 300), keys=(150, 300), dims=(128, 128)
    ),
    "jagged, gates of tokens": Case(TOKENS, rows=(150, 20), keys=(70, 140), key_heads=1),
    "short dense keys": Case("gelu_tanh(mul(s,0.125))", rows=(150, 40, 0), keys=64),
    "a pole past the end": Case(POLE, key_heads=1, rows=70, keys=140),
    "a mask per head": Case(PER_HEAD, heads=3, key_heads=3, rows=130, keys=400),
    "a mask per head, grouped heads": Case(PER_HEAD, heads=4, rows=130, keys=400),
    "shared seeds": Case(
        "div(silu(mul(s,0.125)),float(i0))", rows=32, keys=(150, 40, 0, 200), shared="q"
    ),
    "shared keys": Case(batch=3, rows=100, keys=140, shared="kv"),
}  # fmt: skip
FAST = {
    "tails, grouped heads", "fp16, head dims of 96 and 40", "causal sigmoid", "bias and mask",
    "jagged, gates of tokens", "shared seeds", "a pole past the end",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [x if x in FAST else pytest.param(x, marks=pytest.mark.slow) for x in CASES]
)
def test_gradients_obey_the_error_rule(name):
    case = CASES[name]
    call = make_call(case)
    exact, eager = unfused(case, call, torch.float64), unfused(case, call, case.dtype)
    mine = emulated(case, call)
    for letter, fused, theirs, truth in zip("qkv", mine, eager, exact):
        assert not (fault := error_of(fused, theirs, truth, direction="backward")), (letter, fault)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_schedule_of_the_emulator_gives_the_same_bits(name):
    case = CASES[name]
    emulated(case, make_call(case), schedules=("lazy", "random", "eager"))


def test_integers_come_out_exactly():
    """Sparse small integers: every product is exact in bf16, so a wrong index is a wrong bit."""
    case = Case("relu(s)", key_heads=1, rows=150, keys=140, dims=(64, 32))
    call = make_call(case, integers=True)
    generator = torch.Generator().manual_seed(1)
    for tensor in call.matrices:
        tensor *= (torch.rand(tensor.shape, generator=generator) < 0.04).to(tensor.dtype)
    exact = unfused(case, call, torch.float64)
    assert all(x.abs().max() in range(1, 256) for x in exact)
    for fused, truth in zip(emulated(case, call), exact):
        assert torch.equal(fused.double(), truth)


def test_neighbours_do_not_leak():
    """A sequence of NaN changes no bit of the others."""
    case = Case(heads=1, key_heads=1, rows=(70, 30, 140), keys=(60, 50, 130))
    call = make_call(case)
    clean = emulated(case, call)
    cu_q, cu_k = call.offsets
    for tensor, cu in zip(call.matrices, (cu_q, cu_k, cu_k, cu_q)):
        tensor[int(cu[1]) : int(cu[2])] = float("nan")
    for before, after, cu in zip(clean, emulated(case, call), (cu_q, cu_k, cu_k)):
        first, second, end = int(cu[1]), int(cu[2]), int(cu[3])
        assert torch.equal(before[:first], after[:first])
        assert torch.equal(before[second:end], after[second:end])
        assert after[first:second].isnan().all()
        assert not after[end:].any()


def test_offsets_that_decrease_own_nothing():
    """As in the forward. A count of tiles below zero would upset the order of the barriers."""
    case = Case(heads=1, key_heads=1, rows=70, keys=(0, 300), ctas=1)
    call = dataclasses.replace(make_call(case), order=torch.arange(2))
    offsets = torch.tensor([300, 0, 300], dtype=torch.int32)
    operands = dataclasses.replace(call.operands, cu_seqlens_k=offsets)
    decreasing = dataclasses.replace(call, operands=operands)
    for empty, negative in zip(emulated(case, call), emulated(case, decreasing)):
        assert torch.equal(empty, negative)


@pytest.mark.slow
def test_the_number_of_ctas_changes_no_bit():
    case = Case(batch=2, key_heads=1, rows=140, keys=260)
    call = make_call(case)
    alone = emulated(dataclasses.replace(case, ctas=1), call)
    for one, many in zip(alone, emulated(dataclasses.replace(case, ctas=5), call)):
        assert torch.equal(one, many)


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False)])
def test_only_what_is_asked_for_is_launched(needs, monkeypatch):
    case = Case(rows=64, keys=64, heads=1, key_heads=1)
    call = make_call(case)
    o = call.operands
    plan = plan_of(o, True, True, Sm100Config)
    outputs = {letter: backward_launch.room(plan, o, letter) for letter in "qkv"}
    for tensor in outputs.values():
        tensor.fill_(float("nan"))
    monkeypatch.setattr(backward_launch, "room", lambda plan, operands, letter: outputs[letter])
    with recording():
        for side in SIDES:
            backward_launch.compiled(plan.config, side)
    found = []
    run(
        lambda: found.append(backward_launch.backward(call.grad_out, o, needs, ctas=1, stream=0)),
        [*call.matrices, *outputs.values()],
        schedules=("lazy",),
    )
    (grad,) = found[-1]
    (letter,) = [letter for letter, need in zip("qkv", needs) if need]
    eager, exact = (
        unfused(case, call, x)["qkv".index(letter)] for x in (case.dtype, torch.float64)
    )
    assert not error_of(grad, eager, exact, direction="backward")
    assert needs[0] or outputs["q"].isnan().all()
    assert not needs[0] or outputs["k"].isnan().all()


@pytest.mark.parametrize(
    "needs, heads, dims, reason",
    [
        ((True, True, True, True), (2, 2), (64, 64), "gradients of operands between the products"),
        ((True, True, True), (2, 1), (64, 64), "not 2 key heads and 1 value heads"),
        ((True, True, True), (2, 2), (60, 64), "head dim of 60"),
        ((True, True, True), (2, 2), (64, 256), "head dim of 256"),
    ],
)
def test_refusals_say_why(needs, heads, dims, reason):
    config = Sm100Config("bfloat16", *dims, "a0:f[q_idx,kv_idx]; add(s,a0)", ("float32",))
    assert reason in unsupported(config, needs, *heads)


def test_supported():
    assert unsupported(Sm100Config("bfloat16", 64, 128, SILU), (True, True, False), 2, 2) == ""
