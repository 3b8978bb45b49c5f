"""Problems for the CuTe kernels of Blackwell, one line each, judged by the error rule on the
emulator."""

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gdpa_inductor.operands import Operands, output_shape
from gdpa_inductor.program.expr import fold, torch_apply
from gdpa_inductor.program.score_mod import Aux, ScoreMod
from gdpa_inductor.reference import program_leaves
from tests.tolerances import error_of

BF16, F16 = torch.bfloat16, torch.float16
SILU = "silu(mul(s,0.088))"


@dataclass(frozen=True)
class Case:
    """query [b,h,m,d], key [b,hk,n,d], value [b,hv,n,dv], or jagged: lengths of the sequences of
    one side in q_lengths, k_lengths ("same": those of the queries).

    aux: the dtypes of the program's operands, unless real ones have that of the matrices. shared:
    matrices with a batch of one. view: how the dense matrices lie in memory, "bhnd" or "bnhd".
    most: max_seqlen where it is not the longest. ctas: of the launch; few, so that each has several
    tiles."""

    name: str
    program: str = SILU
    m: int = 256
    n: int = 256
    d: int = 128
    dv: int = 0
    b: int = 1
    h: int = 1
    hk: int = 0
    hv: int = 0
    dtype: torch.dtype = BF16
    q_lengths: tuple[int, ...] = ()
    k_lengths: tuple[int, ...] = ()
    offsets: torch.dtype = torch.int32
    aux: tuple[torch.dtype, ...] = ()
    scalars: tuple[int, ...] = ()
    shared: str = ""
    view: str = "bhnd"
    most: int = 0
    ctas: int = 1
    fast: bool = True
    scale: float = 1.0

    @property
    def mod(self) -> ScoreMod:
        return ScoreMod.parse(self.program)

    def operands(self) -> Operands[torch.Tensor]:
        """On the CPU. Rows that no sequence owns are NaN."""
        torch.manual_seed(len(self.name))
        hk, dv = self.hk or self.h, self.dv or self.d
        query, cu_q = self._matrix("q", self.h, self.m, self.d, self.q_lengths)
        key, cu_k = self._matrix("k", hk, self.n, self.d, self.k_lengths)
        value, _ = self._matrix("v", self.hv or hk, self.n, dv, self.k_lengths)
        most_q, most_k = (
            (self.most or max(lengths)) if lengths else 0
            for lengths in (self.q_lengths, self.k_lengths)
        )
        batch = len(self.q_lengths or self.k_lengths) or self.b
        sizes = {"b": batch, "h": self.h, "q_idx": most_q or self.m, "kv_idx": most_k or self.n}
        sizes |= {"-": 1, "q": len(query), "k": len(key)}
        kinds = {"f": self.dtype, "i": torch.int64, "b": torch.bool}
        specs = self.mod.aux
        dtypes = self.aux or [kinds[spec.kind] for spec in specs]
        aux = [
            _operand(tuple(sizes[x] for x in spec.access), dtype)
            for spec, dtype in zip(specs, dtypes, strict=True)
        ]
        lengths = (cu_q, cu_k, most_q, most_k)
        return Operands(query, key, value, aux, self.scalars, self.mod, *lengths)

    def _matrix(
        self, letter: str, heads: int, rows: int, width: int, lengths: tuple[int, ...]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if lengths:
            total = sum(lengths)
            matrix = torch.randn(total + 64, heads, width) * self.scale
            matrix[total:] = float("nan")
            offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=self.offsets)
            return matrix.to(self.dtype), offsets
        batch = 1 if letter in self.shared else self.b
        if self.view == "bnhd":
            tensor = torch.randn(batch, rows, heads, width).transpose(1, 2)
        else:
            tensor = torch.randn(batch, heads, rows, width)
        return (tensor * self.scale).to(self.dtype), None


def unwritten(o: Operands[torch.Tensor]) -> torch.Tensor:
    """Room for the output: NaN where a kernel has to store; rows that no sequence owns are zero."""
    out = torch.full(output_shape(o), torch.nan, dtype=o.query.dtype)
    if o.cu_seqlens_q is not None:
        out.zero_()
        for start, end in itertools.pairwise(o.cu_seqlens_q.tolist()):
            out[start : min(end, start + o.max_seqlen_q)] = torch.nan
    return out


def _operand(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) > 0.3
    if not dtype.is_floating_point:
        return torch.randint(0, 200, shape, dtype=dtype)
    return torch.randn(shape).to(dtype)


def formula(
    o: Operands[torch.Tensor],
    dtype: torch.dtype,
    grad_out: torch.Tensor | None = None,
    learned: bool = False,
) -> list[torch.Tensor]:
    """O, and dQ, dK and dV where the gradient of O is known: the unfused formula, sequence by
    sequence. Every product rounds to `dtype`, the program is computed on rounded scores and its
    weights are rounded. Rows of no sequence are zero. Row sums of a backward have their gradient as
    a factor. learned: the gradients of operands too, which have their own dtype, and the program
    the widest, unless all is exact."""
    *offsets, most_q, most_k = o.lengths
    cu_q, cu_k = (None if cu is None else cu.tolist() for cu in offsets)
    matrices = (o.query, o.key, o.value)
    leaves = [x.detach().to(dtype).requires_grad_(grad_out is not None) for x in matrices]
    jagged = [cu for cu in (cu_q, cu_k) if cu is not None]
    batch = len(jagged[0]) - 1 if jagged else max(len(x) for x in matrices)
    shape = o.query.shape[:-1] if cu_q is not None else (batch, *o.query.shape[1:-1])
    results = [leaves[0].new_zeros(*shape, o.value.shape[-1])]
    if learned:
        exact = dtype == torch.float64
        biases = [x.to(dtype if exact else x.dtype) for x in o.aux if x.is_floating_point()]
        leaves += [x.detach().requires_grad_() for x in biases]
        aux = iter(leaves[3:])
        o = dataclasses.replace(o, aux=[next(aux) if x.is_floating_point() else x for x in o.aux])
    if grad_out is not None:
        results += [torch.zeros_like(leaf) for leaf in leaves]
    for b in range(batch):
        q = _sequence(leaves[0], cu_q, b, most_q)
        k, v = (_sequence(x, cu_k, b, most_k) for x in leaves[1:3])
        if 0 in (q.shape[1], k.shape[1]):
            continue
        k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
        score = q @ k.mT
        for x in leaves[3:]:
            score = score.to(torch.promote_types(score.dtype, x.dtype))
        weight, *summed = (x.to(dtype) for x in _terms(o, b, score))
        out = weight @ v
        _sequence(results[0], cu_q, b, most_q).copy_(out.detach())
        if grad_out is not None:
            direction = _sequence(grad_out.to(dtype), cu_q, b, most_q)
            directions = [direction, *map(torch.ones_like, summed)]
            parts = torch.autograd.grad([out, *summed], leaves, directions, allow_unused=learned)
            for total, part in zip(results[1:], parts, strict=True):
                total += 0 if part is None else part
    return results


def _sequence(matrix: torch.Tensor, cu: list[int] | None, b: int, most: int) -> torch.Tensor:
    """[H, n, D] of one sequence."""
    if cu is None:
        return matrix[b % len(matrix)]
    return matrix[cu[b] : min(cu[b + 1], cu[b] + most)].transpose(0, 1)


def _terms(o: Operands[torch.Tensor], b: int, score: torch.Tensor) -> list[torch.Tensor]:
    """The terms of the program of one sequence, [H, m, n]. An operand with a row for each token is
    one of positions there."""
    (heads, m, n), aux, specs = score.shape, [], []
    for operand, spec in zip(o.aux, o.program.aux, strict=True):
        parts = {"q_idx": (0, m), "kv_idx": (0, n), "b": (b, 1)}
        parts |= {x: (int(cu[b]), k) for x, cu, k in zip("qk", o.lengths, (m, n)) if cu is not None}
        for axis, letter in enumerate(spec.access):
            if letter in parts:
                operand = operand.narrow(axis, *parts[letter])
        aux.append(operand)
        names = {"q": "q_idx", "k": "kv_idx"}
        specs.append(Aux(spec.kind, tuple(names.get(x, x) for x in spec.access)))
    program = dataclasses.replace(o.program, aux=tuple(specs))
    leaf = program_leaves(score[None], aux, o.scalars, program)
    terms = fold(program.roots, leaf, torch_apply(score.dtype))
    return [x.to(score.dtype).expand(1, heads, m, n)[0] for x in terms]


def exact(o: Operands[torch.Tensor]) -> torch.Tensor:
    return formula(o, torch.float64)[0]


def eager(o: Operands[torch.Tensor]) -> torch.Tensor:
    return formula(o, o.query.dtype)[0]


CAUSAL = "where(ge(q_idx,kv_idx),{},0.0)"
RELU2 = "mul(relu(mul(s,0.088)),relu(mul(s,0.088)))"
BIAS = "a0:f[h,q_idx,kv_idx]; a1:b[b,-,-,kv_idx]; where(a1,gelu_tanh(add(mul(s,0.1),a0)),0.0)"
BIASED = "a0:f[h,q_idx,kv_idx]; where(ge(q_idx,kv_idx),sigmoid(add(mul(s,0.125),a0)),0.0)"
SELF, OTHER = (300, 0, 1, 129), (70, 256, 0, 200)

# One configuration for each feature; a CTA has at least two tiles, and more blocks than stages.
CASES = (
    Case("silu", m=520, n=700, ctas=1),
    Case("gelu_tanh", "gelu_tanh(mul(s,0.125))", d=64, m=300, n=200, h=3, dtype=F16, ctas=2),
    Case("relu2_gqa", RELU2, d=64, m=140, n=140, h=4, hk=2, view="bnhd", dtype=F16),
    Case("sigmoid_causal", CAUSAL.format("sigmoid(s)"), d=64, m=520, n=520, ctas=1),
    Case("bias_by_vectors", "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.1),a0))", m=200, n=304, h=2),
    Case(
        "bias_and_mask", BIAS, d=64, m=200, n=300, b=2, h=2, aux=(torch.float32, torch.bool),
    ), Case("both_scales", "div(silu(mul(s,0.088)),float(i0))", d=96, dv=64, m=130, n=70,
    scalars=(70,)), Case("self", CAUSAL.format(SILU), d=64, h=2, q_lengths=SELF, k_lengths=SELF,
    ctas=2), Case("short_keys", d=64, b=4, n=192, q_lengths=OTHER, ctas=1, offsets=torch.int64),
    Case("rows_without_keys", "sigmoid(s)", d=64, q_lengths=(100, 384, 140, 130, 1, 2), ctas=1,
         k_lengths=(0, 80, 0, 100, 0, 0)),
    Case("seeds", d=64, b=4, m=32, shared="q", k_lengths=SELF, ctas=1),
)  # fmt: skip

MORE = (
    Case("exact_functions", "gelu(mul(s,0.125))", d=64, m=300, n=200, fast=False),
    Case("odd_dims", d=72, dv=40, m=100, n=100),
    Case("truncated", d=64, q_lengths=SELF, k_lengths=SELF, most=140, ctas=1),
    Case("delta", d=64, h=2, hk=1, q_lengths=(3, 1, 0, 130), k_lengths=OTHER),
    Case("window", "where(and(ge(q_idx,kv_idx),lt(sub(q_idx,kv_idx),128)),silu(s),0.0)", d=64,
         m=700, n=700),
    Case("rows_jagged_bias", "a0:f[q,h]; silu(add(mul(s,0.1),a0))", d=64, h=2, q_lengths=SELF,
         k_lengths=SELF),
    Case("causal_many_units", CAUSAL.format(SILU), d=32, m=260, n=130, h=65, ctas=3),
    Case("long", m=1500, n=1500, d=128, h=2, ctas=3),
    Case("jagged_fp16_bias", BIASED, h=2, dtype=F16, q_lengths=SELF, k_lengths=SELF,
         aux=(torch.float32,)),
    Case("jagged_fp16_gelu", "gelu_tanh(mul(s,0.125))", d=64, dtype=F16, q_lengths=SELF,
         k_lengths=SELF),
)  # fmt: skip

BY_HEADS = "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.1),a0))"
TWO = "a0:f[h,q_idx,kv_idx]; a1:f[b,h,q_idx,kv_idx]; silu(add(add(mul(s,0.1),a0),a1))"
WINDOW = "where(and(ge(q_idx,kv_idx),lt(sub(q_idx,kv_idx),100)),silu(s),0.0)"
NO_KEYS = {"q_lengths": (100, 300, 140, 130, 1, 2), "k_lengths": (0, 200, 0, 100, 0, 0)}
# Head dims above 128. On Hopper O has the room of the query tiles there. So tiles without keys
# follow such that have some, on one CTA. Query tiles that meet no key stand beside such that do.
WIDE = (
    Case("D 256", d=256, m=200, n=330, h=2),
    Case("D 192, Dv 128", d=192, dv=128, m=140, n=400, h=2, hk=1),
    Case("D 192, Dv 128, causal", CAUSAL.format(SILU), d=192, dv=128, m=400, n=700, h=2),
    Case("D 160, Dv 64, jagged", d=160, dv=64, h=2, q_lengths=SELF, k_lengths=SELF),
    Case("D 192, Dv 40, no keys", "sigmoid(s)", d=192, dv=40, **NO_KEYS),
    Case("D 192", d=192, m=200, n=300, h=2, view="bnhd"),
    Case("D 160, fp16", d=160, m=140, n=300, h=2, dtype=F16),
    Case("D 136", d=136, m=140, n=270, h=2),
    Case("D 64, Dv 256", d=64, dv=256, m=200, n=300, h=2),
    Case("D 256, Dv 64", d=256, dv=64, m=200, n=300, h=2),
    Case("D 8, Dv 200", d=8, dv=200, m=200, n=300, h=2),
    Case("D 256, causal", CAUSAL.format("sigmoid(s)"), d=256, m=400, n=400),
    Case("D 192, causal, fewer rows", CAUSAL.format(SILU), d=192, m=72, n=500, h=3),
    Case("D 256, window", WINDOW, d=256, m=500, n=500),
    Case("D 256, tiled bias", BY_HEADS, d=256, m=200, n=328, h=2),
    Case("D 224, causal bias", BIASED, d=224, m=328, n=328, h=2, dtype=F16),
    Case("D 256, two biases", TWO, d=256, m=130, n=136, h=2, aux=(BF16, torch.float32)),
    Case("D 256, bias by elements", BY_HEADS, d=256, m=130, n=135, h=2),
    Case("D 256, jagged", d=256, h=2, q_lengths=SELF, k_lengths=SELF),
    Case("D 256, jagged, causal", CAUSAL.format(SILU), d=256, q_lengths=SELF, k_lengths=SELF),
    Case("D 256, jagged bias", BY_HEADS, d=256, h=2, q_lengths=SELF, k_lengths=SELF, most=304),
    Case("D 256, no keys", "sigmoid(s)", d=256, **NO_KEYS),
    Case("D 256, Dv 136, seeds", d=256, dv=136, b=4, m=32, shared="q", k_lengths=SELF),
    Case("D 200, short keys", d=200, b=4, n=192, q_lengths=SELF, offsets=torch.int64),
    Case("D 256, one row", d=256, m=1, n=1, h=3),
)  # fmt: skip


Forward = Callable[[Case, Operands[torch.Tensor]], torch.Tensor]


def check_output(out: torch.Tensor, o: Operands[torch.Tensor]) -> None:
    """By the error rule."""
    wrong = error_of(out, eager(o), exact(o), direction="forward")
    assert wrong is None, wrong


def check_integers(forward: Forward, program: str = "relu(s)", **sizes: Any) -> None:
    """Small integers and relu: every product is exact, so a wrong index is a gross error."""
    case = Case("integers", program, h=2, dtype=F16, **sizes)
    o = case.operands()
    for matrix in (o.query, o.key, o.value, *o.aux):
        matrix.copy_(torch.randint(0, 8, matrix.shape) // 7)
    assert torch.equal(forward(case, o), exact(o).to(case.dtype))


def check_neighbours(forward: Forward, dim: int) -> None:
    """A sequence that is NaN from end to end leaves the others as they are."""
    case, first = Case("neighbours", d=dim, q_lengths=SELF, k_lengths=SELF), SELF[0]
    clean, poisoned = case.operands(), case.operands()
    for matrix in (poisoned.query, poisoned.key, poisoned.value):
        matrix[:first] = torch.nan
    result = forward(case, clean)[first:]
    assert torch.equal(forward(case, poisoned)[first:], result)
    assert result.isfinite().all()


def with_gaps(case: Case) -> tuple[Operands[torch.Tensor], torch.Tensor]:
    """Operands of a case of SELF, whose rows are all numbers, and which rows a sequence owns.

    None owns those before the first sequence, behind the last, and past the most rows of one. The
    last offset is lower than the one before: that sequence owns nothing.
    """
    o = case.operands()
    cu = torch.tensor([37, 100, 400, 450, 490, 480], dtype=torch.int32)
    for matrix in (o.query, o.key, o.value):
        matrix.copy_(torch.randn(matrix.shape))
    owned = torch.zeros(len(o.query), dtype=torch.bool)
    for first, end in ((37, 100), (100, 300), (400, 450), (450, 490)):
        owned[first:end] = True
    sides = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 200, "max_seqlen_k": 200}
    return dataclasses.replace(o, **sides), owned


def check_gaps(rows: torch.Tensor, owned: torch.Tensor) -> None:
    """What a kernel stored for the rows of `with_gaps`: zeros where none is owned."""
    assert not rows[~owned].any()
    assert rows[owned].isfinite().all() and rows[owned].any(-1).all()
