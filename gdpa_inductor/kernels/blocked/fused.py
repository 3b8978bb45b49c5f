"""S = Q Kᵀ and the score program in one Triton kernel, so that S is never stored.

`gdpa::chunk_product` is the product, as an operator in the graph that Inductor compiles for a
chunk. Its lowering is a template, and Inductor fuses the program into its epilogue. It serves
16-bit operands on NVIDIA GPUs. Otherwise torch's library computes the product.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..devices import nvidia
from .block_pass import Pass

WHOLE = 128  # up to so many channels are multiplied in one step
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
