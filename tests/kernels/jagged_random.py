"""Random jagged problems for the CuTe kernels, with poison around every operand, and their judge.

Every operand is a view into a larger storage of NaN and infinities. Rows that no sequence owns are
poison too: those before the first sequence, behind the last, and past the most rows of one. The
judge holds O and the gradients against the unfused formula by the error rule.

`draw(kind, seed)` gives a problem, the same everywhere; `fault(problem, found)` says what is wrong.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gdpa_inductor.operands import Operands
from gdpa_inductor.program.score_mod import ScoreMod
from tests.tolerances import error_of

from .cute_cases import formula

GUARD = 3  # rows of poison before and behind an operand
LENGTHS = (0, 0, 1, 2, 63, 64, 65, 127, 128, 129, 191, 200, 257, 300)  # ends of tiles, and around
POISONS = (float("nan"), float("inf"), float("-inf"))
DRAWS = 4  # for the error that small problems have by luck
NAMES = ("O", "dQ", "dK", "dV")


@dataclass(frozen=True)
class Kind:
    """What kernels are compiled for. tokens: the operands that the program has, a number for each
    query or key. sides: which are jagged."""

    program: str
    dims: tuple[int, int] = (64, 64)
    heads: tuple[int, int] = (2, 2)
    dtype: torch.dtype = torch.bfloat16
    offsets: torch.dtype = torch.int32
    tokens: str = ""
    sides: str = "qk"


SILU, GELU = "silu(mul(s,0.125))", "gelu_tanh(mul(s,0.125))"
CAUSAL = "where(le(kv_idx,q_idx),sigmoid(mul(s,0.125)),0.0)"
GATES = "a0:f[q]; a1:f[k]; mul(silu(mul(s,0.125)),mul(a0,a1))"
KINDS = {
    "silu": Kind(SILU),
    "silu, wide": Kind(SILU, (128, 128)),
    "silu, grouped heads": Kind(SILU, (128, 64), (4, 2)),
    "causal": Kind(CAUSAL),
    "causal, wide": Kind(CAUSAL, (128, 128), (4, 1)),
    "gelu, fp16, odd dims": Kind(GELU, (96, 40), dtype=torch.float16),
    "64-bit offsets": Kind(SILU, (72, 128), offsets=torch.int64),
    "gates of tokens": Kind(GATES, (64, 128), tokens="qk"),
    "jagged keys": Kind(SILU, (64, 64), sides="k"),
    "jagged queries": Kind(SILU, (128, 128), sides="q"),
}


@dataclass(frozen=True)
class JaggedProblem:
    """A call, and which rows of each side take part: [B, most] of their numbers, and whether."""

    kind: Kind
    operands: Operands[torch.Tensor]
    grad_out: torch.Tensor
    ctas: int

    def to(self, device: str) -> "JaggedProblem":
        """On a device, storages and all."""
        o = self.operands
        there = o.filled([moved(x, device) if torch.is_tensor(x) else x for x in o.flat()])
        return dataclasses.replace(self, operands=there, grad_out=moved(self.grad_out, device))

    def rows(self, side: str) -> tuple[torch.Tensor, torch.Tensor]:
        """(numbers, whether they take part), both [B, most]; of a jagged side."""
        o = self.operands
        cu, most = (
            (o.cu_seqlens_q, o.max_seqlen_q) if side == "q" else (o.cu_seqlens_k, o.max_seqlen_k)
        )
        place = torch.arange(most, device=cu.device)
        numbers = cu[:-1, None].long() + place
        return numbers, place < (cu[1:] - cu[:-1])[:, None]

    def owned(self, side: str) -> torch.Tensor:
        """Of each row of a jagged side, whether a sequence has it."""
        numbers, there = self.rows(side)
        total = (self.operands.query if side == "q" else self.operands.key).shape[0]
        result = torch.zeros(total, dtype=torch.bool, device=numbers.device)
        result[numbers[there]] = True
        return result


def storage(view: torch.Tensor) -> torch.Tensor:
    """All that lies there, flat."""
    return view.new_empty(0).set_(view.untyped_storage())


def moved(view: torch.Tensor, device: str) -> torch.Tensor:
    """The view in a copy of its storage."""
    whole = storage(view).to(device)
    return whole.as_strided(view.shape, view.stride(), view.storage_offset())


def draw(kind: Kind, seed: int) -> JaggedProblem:
    """The problem of a seed, on the CPU."""
    random = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=random))

    def pick(values: Sequence):
        return values[number(0, len(values))]

    batch = number(1, 7)
    lengths = {side: [pick(LENGTHS) for _ in range(batch)] for side in "qk"}
    most = {x: pick((1, 64, 200)) for x in "qk"}
    most |= {x: max(1, max(lengths[x]) - pick((0, 0, 0, 1, 70))) for x in kind.sides}
    poison, first, behind = pick(POISONS), {x: pick((0, 0, 5)) for x in "qk"}, pick((0, 9))
    cu = {x: torch.tensor([first[x], *lengths[x]]).cumsum(0) for x in kind.sides}
    total = {x: int(cu[x][-1]) + behind for x in kind.sides}

    def matrix(side: str, heads: int, width: int) -> torch.Tensor:
        """Jagged, or of all sequences."""
        shape = (total[side], heads) if side in kind.sides else (batch, heads, most[side])
        values = torch.randn(*shape, width, generator=random).to(kind.dtype)
        return surrounded(values, poison, pad=pick((0, 8)))

    (query_heads, key_heads), (dim, value_dim) = kind.heads, kind.dims
    q, k = matrix("q", query_heads, dim), matrix("k", key_heads, dim)
    v, grad = matrix("k", key_heads, value_dim), matrix("q", query_heads, value_dim)
    aux = [surrounded(torch.randn(total[x], generator=random), poison) for x in kind.tokens]
    offsets = [surrounded(cu[x].to(kind.offsets), 1 << 30) if x in cu else None for x in "qk"]
    o = Operands(q, k, v, aux, (), ScoreMod.parse(kind.program), *offsets, most["q"], most["k"])
    result = JaggedProblem(kind, o, grad, pick((0, 0, 1, 3, 17)))
    for side, tensors in (("q", (q, grad)), ("k", (k, v))):
        if side in kind.sides:
            for x in (*tensors, *(a for a, letter in zip(aux, kind.tokens) if letter == side)):
                x[~result.owned(side)] = poison
    return result


def surrounded(values: torch.Tensor, poison: float, pad: int = 0) -> torch.Tensor:
    """The values as a view into a storage that is poison elsewhere: rows before and behind, a head
    more and `pad` columns more. Addresses and strides stay multiples of 16 bytes."""
    if values.dim() == 1:
        align = 16 // values.element_size()
        room = torch.full((len(values) + 2 * align,), poison, dtype=values.dtype)
        view = room[align : align + len(values)]
    else:
        shape = list(values.shape)
        shape[0] += 2 * GUARD
        shape[1] += 1
        shape[-1] += pad
        room = torch.full(shape, poison, dtype=values.dtype)
        view = room[GUARD : GUARD + values.shape[0], : values.shape[1], ..., : values.shape[-1]]
    return view.copy_(values)


def perturbed(matrix: torch.Tensor, eps: float) -> torch.Tensor:
    """Every element is moved by so much of itself, up or down."""
    sign = torch.randint(0, 2, matrix.shape, device=matrix.device) * 2 - 1
    return matrix * (1 + eps * sign)


class Judge:
    """Holds results of a problem against the formula, by the error rule."""

    def __init__(self, problem: JaggedProblem) -> None:
        self.problem = problem
        self.dtypes = (problem.kind.dtype, torch.float64)
        self.eager, self.exact = self.results_of(problem.operands)

    def results_of(self, o: Operands[torch.Tensor]) -> list[list[torch.Tensor]]:
        """O, dQ, dK and dV in the dtype of the problem, and in fp64."""
        return [formula(o, dtype, self.problem.grad_out) for dtype in self.dtypes]

    @functools.cached_property
    def noise(self) -> list[float]:
        """The largest error of the unfused formula over a few draws of operands a rounding away."""
        worst = [0.0] * len(NAMES)
        o, eps = self.problem.operands, torch.finfo(self.dtypes[0]).eps
        for _ in range(DRAWS):
            query, key, value = (perturbed(x, eps) for x in (o.query, o.key, o.value))
            other = dataclasses.replace(o, query=query, key=key, value=value)
            for place, (rounded, truth) in enumerate(zip(*self.results_of(other), strict=True)):
                worst[place] = max(worst[place], (rounded.double() - truth).abs().max().item())
        return worst

    def fault(self, results: Sequence[torch.Tensor]) -> str | None:
        """What is wrong with O, dQ, dK and dV. Rows of no sequence are zero."""
        for place, each in enumerate(zip(results, self.eager, self.exact, strict=True)):
            side, direction = "qqkk"[place], "backward" if place else "forward"
            if side in self.problem.kind.sides and each[0][~self.problem.owned(side)].any():
                return f"{NAMES[place]}: rows that no sequence has are not zero"
            wrong = error_of(*each, direction=direction)
            if wrong is not None:
                wrong = error_of(*each, direction=direction, noise=self.noise[place])
            if wrong is not None:
                return f"{NAMES[place]}: {wrong}"
        return None


def fault(problem: JaggedProblem, results: Sequence[torch.Tensor]) -> str | None:
    """What is wrong with results of a problem, which are judged once."""
    return Judge(problem).fault(results)
