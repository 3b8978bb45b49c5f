"""Cases of the CuTe backwards: operands, and the gradients of the plain formula."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gdpa_inductor.operands import Operands
from gdpa_inductor.program.score_mod import Aux, ScoreMod
from gdpa_inductor.reference import reference_backward
from tests.tolerances import error_of

from .cute_cases import formula

SILU = "silu(mul(s,0.125))"
CAUSAL = "where(le(kv_idx,q_idx),sigmoid(mul(s,0.125)),0.0)"
BIASED = "a0:f[b,h,q_idx,kv_idx]; a1:b[b,-,-,kv_idx]; where(a1,silu(add(mul(s,0.125),a0)),0.0)"
CAUSAL_BIAS = "a0:f[h,q_idx,kv_idx]; where(ge(q_idx,kv_idx),sigmoid(add(mul(s,0.125),a0)),0.0)"
PER_HEAD = "a0:i[h]; where(lt(kv_idx,a0),silu(mul(s,0.125)),0.0)"
POLE = "where(eq(s,0.0),div(1.0,s),silu(mul(s,0.125)))"  # scores past the end are 0
TOKENS = "a0:f[q]; a1:f[k]; mul(silu(mul(s,0.125)),mul(a0,a1))"


@dataclass(frozen=True)
class Case:
    """rows, keys: of every sequence, or the lengths of jagged ones. shared: operands of batch 1.
    bias: the dtype of real operands of the program."""

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
    bias: torch.dtype = torch.float32

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The batch, and the most rows and keys of a sequence."""
        sides = (self.rows, self.keys)
        batch = next((len(x) for x in sides if isinstance(x, tuple)), self.batch)
        longest = [max(x) if isinstance(x, tuple) else x for x in sides]
        return batch, *(self.most or longest)

    def operand(self, number: int, spec: Aux, sizes: Mapping[str, int]) -> torch.Tensor:
        """An operand of the program, and its number. sizes: of the axes."""
        shape = [sizes[x] for x in spec.access]
        if spec.kind == "f":
            return torch.randn(shape).to(self.bias)
        if spec.kind == "b":
            return torch.rand(shape) < 0.7
        return torch.randint(0, sizes["kv_idx"], shape)


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


def few(shape: Sequence[int]) -> torch.Tensor:
    """Integers from -2 to 2."""
    return torch.randint(-2, 3, shape).float()


def make_call(
    case: Case, integers: bool = False, draw: Callable[..., torch.Tensor] = torch.randn
) -> Problem:
    """Operands of a case; what lies past the last jagged sequence is NaN. draw: matrices of a
    shape; integers: a few."""
    torch.manual_seed(0)
    (batch, rows, cols), (dim, value_dim) = case.sizes, case.dims
    cu_q, cu_k = (_offsets(side, case.offsets) for side in (case.rows, case.keys))

    def matrix(name: str, side: object, cu: torch.Tensor | None, heads: int, width: int):
        if cu is None:
            shape = (1 if name in case.shared else batch, heads, side, width)
        else:
            shape = (int(cu[-1]) + 9, heads, width)
        values = few(shape) if integers else draw(shape)
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
    program = ScoreMod.parse(case.program)
    aux = [case.operand(i, spec, sizes) for i, spec in enumerate(program.aux)]
    order = None if cu_q is None and cu_k is None else torch.arange(batch).flip(0)
    operands = Operands(q, k, v, aux, (64,), program, cu_q, cu_k, rows, cols)
    return Problem(operands, grad, order, batch, rows, cols)


def _offsets(lengths: object, dtype: torch.dtype) -> torch.Tensor | None:
    if not isinstance(lengths, tuple):
        return None
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=dtype)


def exact(
    grad_out: torch.Tensor, o: Operands[torch.Tensor], needs: Sequence[bool]
) -> list[torch.Tensor]:
    """The gradients that are needed, of matrices and operands, by the definition in fp64."""
    query, key, value, *aux = (x.double() for x in o.differentiable)
    wide = dataclasses.replace(o, query=query, key=key, value=value, aux=aux)
    return reference_backward(grad_out.double(), wide, needs)


def unfused(case: Case, call: Problem, dtype: torch.dtype) -> list[torch.Tensor]:
    """The gradients of the plain formula in `dtype`."""
    return formula(call.operands, dtype, call.grad_out)[1:]


def unfused_biased(call: Problem, dtype: torch.dtype) -> list[torch.Tensor]:
    """Those of operands of the program too."""
    return formula(call.operands, dtype, call.grad_out, learned=True)[1:]


Backward = Callable[[Case, Problem], list[torch.Tensor]]


def check_errors(found: Sequence[torch.Tensor], case: Case, call: Problem) -> None:
    """dQ, dK and dV by the error rule."""
    exact, eager = unfused(case, call, torch.float64), unfused(case, call, case.dtype)
    for letter, fused, theirs, truth in zip("qkv", found, eager, exact, strict=True):
        assert not (fault := error_of(fused, theirs, truth, direction="backward")), (letter, fault)


def sparse_integers(case: Case) -> Problem:
    """Every product of such is exact in bf16, so a wrong index is a wrong bit."""
    call = make_call(case, integers=True)
    generator = torch.Generator().manual_seed(1)
    for tensor in call.matrices:
        tensor *= (torch.rand(tensor.shape, generator=generator) < 0.04).to(tensor.dtype)
    return call


def check_integers(backward: Backward, dims: tuple[int, int] = (64, 32), **sizes: int) -> None:
    case = Case("relu(s)", key_heads=1, dims=dims, **{"rows": 150, "keys": 140, **sizes})
    call = sparse_integers(case)
    exact = unfused(case, call, torch.float64)
    assert all(x.abs().max() in range(1, 256) for x in exact)
    for fused, truth in zip(backward(case, call), exact, strict=True):
        assert torch.equal(fused.double(), truth)


def check_neighbours(backward: Backward, **sizes: Any) -> None:
    """A sequence of NaN changes no bit of the others."""
    case = Case(rows=(70, 30, 140), keys=(60, 50, 130), **sizes)
    call = make_call(case)
    clean = backward(case, call)
    cu_q, cu_k = call.offsets
    for tensor, cu in zip(call.matrices, (cu_q, cu_k, cu_k, cu_q)):
        tensor[int(cu[1]) : int(cu[2])] = float("nan")
    for before, after, cu in zip(clean, backward(case, call), (cu_q, cu_k, cu_k)):
        first, second, end = int(cu[1]), int(cu[2]), int(cu[3])
        assert torch.equal(before[:first], after[:first])
        assert torch.equal(before[second:end], after[second:end])
        assert after[first:second].isnan().all()
        assert not after[end:].any()


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
    "jagged, fp16, head dim 128, causal bias": Case(
        CAUSAL_BIAS, rows=(200, 0, 130, 1), keys=(200, 0, 130, 1), dims=(128, 128),
        dtype=torch.float16,
    ),
    "jagged, fp16, squared relu": Case(
        "pow(relu(mul(s,0.125)),2.0)", rows=(200, 0, 130, 1), keys=(200, 0, 130, 1),
        dtype=torch.float16,
    ),
    "shared keys": Case(batch=3, rows=100, keys=140, shared="kv"),
}  # fmt: skip
