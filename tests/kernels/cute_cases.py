"""Problems for the CuTe kernels of Blackwell, one line each, judged by the error rule on the emulator."""

from dataclasses import dataclass

import torch

from gdpa_inductor.expr import fold
from gdpa_inductor.operands import Operands
from gdpa_inductor.ops import program_leaves
from gdpa_inductor.reference import reference
from gdpa_inductor.expr import torch_apply
from gdpa_inductor.score_mod import ScoreMod

BF16, F16 = torch.bfloat16, torch.float16
SILU = "silu(mul(s,0.088))"


@dataclass(frozen=True)
class Case:
    """query [b,h,n,d], key [b,hk,m,d], value [b,hv,m,dv], or packed: lengths of the sequences of one
    side in q_lengths, k_lengths ("same": those of the queries).

    aux: shape and dtype of each operand of the program. shared: matrices with a batch of one. view: how
    the dense matrices lie in memory, "bhnd" or "bnhd". most: max_seqlen where it is not the longest.
    ctas: of the launch; few, so that a CTA has several tiles.
    """

    name: str
    program: str = SILU
    n: int = 256
    m: int = 256
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
    aux: tuple[tuple[tuple[int, ...], torch.dtype], ...] = ()
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
        query, cu_q = self._matrix("q", self.h, self.n, self.d, self.q_lengths)
        key, cu_k = self._matrix("k", hk, self.m, self.d, self.k_lengths)
        value, _ = self._matrix("v", self.hv or hk, self.m, dv, self.k_lengths)
        aux = [_operand(shape, dtype) for shape, dtype in self.aux]
        most_q = self.most or max(self.q_lengths, default=0)
        most_k = self.most or max(self.k_lengths, default=0)
        return Operands(
            query, key, value, aux, self.scalars, self.mod, cu_q, cu_k,
            most_q if self.q_lengths else 0, most_k if self.k_lengths else 0,
        )  # fmt: skip

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
            made = torch.randn(batch, rows, heads, width).transpose(1, 2)
        else:
            made = torch.randn(batch, heads, rows, width)
        return (made * self.scale).to(self.dtype), None


def _operand(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) > 0.3
    if not dtype.is_floating_point:
        return torch.randint(0, 200, shape, dtype=dtype)
    return torch.randn(shape).to(dtype)


def exact(operands: Operands[torch.Tensor]) -> torch.Tensor:
    """The formula in fp64."""
    return reference(widened(operands))


def widened(operands: Operands[torch.Tensor]) -> Operands[torch.Tensor]:
    flat = [
        x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in operands.flat()
    ]
    return operands.filled(flat)


def eager(o: Operands[torch.Tensor]) -> torch.Tensor:
    """The unfused formula in the precision of the operands: every product rounds, the program is
    computed on rounded scores and its weights are rounded. Dense operands, or one sequence at a time."""
    from gdpa_inductor.ops import expand_heads

    scores = o.query @ expand_heads(o.key, o.query.shape[1]).mT
    batch = max(x.shape[0] for x in (o.query, o.key, o.value))
    scores = scores.expand(batch, -1, -1, -1)
    dtype = scores.dtype
    leaf = program_leaves(scores, o.aux, o.scalars, o.program)
    (weight,) = fold([o.program.weight], leaf, torch_apply(dtype))
    return weight.to(dtype).expand_as(scores) @ expand_heads(o.value, o.query.shape[1])


CASES = (
    Case("plain"),
    Case("two_tiles_tails", n=300, m=520, h=2, ctas=1),
)
