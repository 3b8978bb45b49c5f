"""S = Q Kᵀ and the score program in one Triton kernel, so that S is never stored.

`gdpa::chunk_product` is the product, as an operator in the graph that Inductor compiles for a
chunk. Its lowering is a template, and Inductor fuses the program into its epilogue. It serves
16-bit operands on NVIDIA GPUs. Otherwise torch's library computes the product.

In a backward on Hopper one kernel computes both products, S and dP = dO Vᵀ, if head dims are not
too wide for its tiles. `lowerings/weights.py` chooses between two such kernels: CuTe's is called as
it is, and Triton's is the lowering of `gdpa::attention_weights`, which Inductor compiles.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...program.expr import AXES, Expr, aux, call, element_kind, with_leaves
from ...program.score_mod import Aux, ScoreMod
from ..devices import nvidia
from .block_pass import Pass

WHOLE = 128  # up to so many channels are multiplied in one step
WIDEST = 256  # the widest head dims for which one kernel computes S and dP
_SOURCE = Path(__file__).parent / "templates" / "product.py.jinja"
_LIBRARY = torch.library.Library("gdpa", "FRAGMENT")
_LIBRARY.define("chunk_product(Tensor query, Tensor key, SymInt heads) -> Tensor")


def _product(query: Tensor, key: Tensor, heads: int) -> Tensor:
    """query [U,M,D], key [U,N,D]: [U/heads,heads,M,N], in fp32 where those are of 16 bits."""
    wide = torch.promote_types(query.dtype, torch.float32)
    return (query.to(wide) @ key.to(wide).mT).unflatten(0, (-1, heads))


_LIBRARY.impl("chunk_product", _product, "CompositeExplicitAutograd")
PRODUCT = torch.ops.gdpa.chunk_product.default


@functools.cache
def source() -> str:
    """The text of the template."""
    return _SOURCE.read_text("utf-8")


@dataclass(frozen=True)
class FusedPass:
    """The function of a chunk that Inductor compiles: (query, key, [dP], *operands) to P and dS.

    It returns only the wanted ones, in the dtype of the query.
    """

    work: Pass
    heads: int

    def __call__(self, query: Tensor, key: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        score = PRODUCT(query, key, self.heads)
        grad, leaves = (rest[0], rest[1:]) if self.work.reads_grad else (None, rest)
        terms = self.work.terms(score, grad, leaves)
        return tuple(term.expand_as(score).to(query.dtype).contiguous() for term in terms)


@dataclass(frozen=True)
class StoredPass:
    """The function of a chunk in a backward: (query, key, value, dO, *operands) to P, dS and terms
    of aux operands, which are summed.

    It returns only the wanted ones, in the dtype of the query. needs: As of
    `gdpa::attention_weights`. options: Those of the kernel, as text.
    """

    program: ScoreMod
    needs: tuple[bool, ...]
    heads: int
    options: str

    @staticmethod
    def operands(work: Pass, cut: Collection[str], leaves: Sequence[Tensor]) -> dict[Expr, Tensor]:
        """The operands of a chunk, by the leaves of the pass for which they stand.

        cut: The axes of which the chunk has a part. leaves: Those of `Pass.operands`.
        """
        operands: dict[Expr, Tensor] = {}
        pairs = zip(work.operands, leaves, strict=True)
        for node, tensor in sorted(pairs, key=lambda pair: (pair[0].op, pair[0].value or 0)):
            if node.op not in AXES:
                operands[node] = tensor
            elif node.op in cut:  # the index of the chunk's first element
                operands[node] = tensor.narrow(AXES.index(node.op), 0, 1)
        return operands

    @staticmethod
    def of(work: Pass, operands: Mapping[Expr, Tensor], heads: int, options: str) -> StoredPass:
        """The function of chunks with such operands."""
        known: dict[Expr, Expr] = {}
        numbers: dict[object, int] = {}
        specs: list[Aux] = []
        for node, tensor in operands.items():
            own = aux(len(specs), node.kind)
            known[node] = call("add", node, own) if node.op in AXES else own
            numbers[node.value] = len(specs)
            specs.append(_spec(node, tensor))
        roots = [with_leaves(root, lambda x: known.get(x, x)) for root in work.program]
        program = ScoreMod(roots[0], tuple(specs), *roots[1:])
        wanted = {numbers[own.number] for own in work.own_sums}
        needs = [False, work.score_grad is not None, work.weight is not None]
        needs += [number in wanted for number in range(len(specs))]
        return StoredPass(program, tuple(needs), heads, options)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        query, key, value, grad_out = self.by_head(tensors[:4])
        matrices, operands = (grad_out, query, key, value), list(tensors[4:])
        more = str(self.program), list(self.needs), self.options
        return tuple(torch.ops.gdpa.attention_weights.default(*matrices, operands, [], *more))

    def by_head(self, matrices: Sequence[Tensor]) -> list[Tensor]:
        """Matrices of units as [b,h,rows,width]."""
        return [matrix.unflatten(0, (-1, self.heads)) for matrix in matrices]


def _spec(node: Expr, operand: Tensor) -> Aux:
    """How an operand on four axes is read; a table has one dim more."""
    sizes = zip((*AXES, "t"), operand.shape, strict=False)
    access = [axis if size != 1 or axis == "t" else "-" for axis, size in sizes]
    return Aux(element_kind(node.kind), tuple(access))


@functools.cache
def _runs_on(device: torch.device) -> bool:
    return (
        nvidia(device)
        and importlib.util.find_spec("triton") is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def fuses(query: Tensor, value: Tensor) -> bool:
    """Whether one kernel computes S of these operands and the program."""
    return (
        query.dtype == value.dtype
        and query.dtype in (torch.float16, torch.bfloat16)
        and _runs_on(query.device)
    )


def stores(query: Tensor, value: Tensor) -> bool:
    """Whether one kernel computes P and dS of these operands in a backward."""
    narrow = max(query.shape[-1], value.shape[-1]) <= WIDEST
    return narrow and fuses(query, value) and torch.cuda.get_device_capability(query.device)[0] == 9
