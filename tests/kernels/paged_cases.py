"""Problems for the Triton forward whose keys and values lie in pages."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .cases import CAUSAL, SILU, _laid_out
from .jagged_cases import JaggedCase
from .split_cases import LAST, LENGTH


@dataclass(frozen=True)
class PagedCase(JaggedCase):
    """key [pages, hk, page, d], value [pages, hv, page, dv], and a table of n // page pages.

    tables: how many sequences the table has. missing: an entry of the table that is no page.
    """

    page: int = 16
    pages: int = 5
    tables: int = 0
    table: torch.dtype = torch.int32
    missing: int | None = None
    needs: str = ""

    @property
    def batch(self) -> int:
        return len(self.lengths_q) if self.lengths_q else self.b

    def tensors(self) -> list[torch.Tensor]:
        """As those of `JaggedCase`, the table last."""
        made = super().tensors()
        for place, heads, width in ((2, self.hk, self.d), (3, self.hv, self.dv)):
            shape = (self.pages, heads or self.h, self.page, width)
            made[place] = _laid_out(shape, self.view)
        table = torch.randint(self.pages, (self.tables or self.batch, self.n // self.page))
        if self.missing is not None:
            table[-1, -1] = self.missing
        return [*made, table.to(self.table)]

    def lengths(self, rest: list[torch.Tensor]) -> tuple:
        *offsets, table = rest
        return *super().lengths(offsets), table


@dataclass(frozen=True)
class WrittenCase(PagedCase):
    """Pages are written before the attention, and all of them after it."""

    def function(self) -> Callable:
        attention = super().function()

        def run(grad_out, query, key, value, *rest):
            _write(key, value)
            (out,) = attention(grad_out, query, key, value, *rest)
            for operand in (key, value, rest[-1]):
                operand.mul_(0)
            return [out]

        return run

    def expected(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        grad_out, query, *pools, table = (t.clone() for t in tensors)
        _write(*pools)
        return super().expected([grad_out, query, *pools, table])


def _write(key: torch.Tensor, value: torch.Tensor) -> None:
    # A subscript of a faked tensor asks for its device, which a build for CPUs lacks.
    key.select(0, 1).mul_(2.0)
    value.select(2, 5).mul_(-3.0)


FEW = {"m": 3, "n": 1104, "b": 2}

CASES = [
    PagedCase("paged", SILU, n=96),
    PagedCase("paged_tail", "sigmoid(s)", n=80, view="bnhd"),
    PagedCase("paged_slots", "sigmoid(s)", n=37, page=1, pages=50),
    PagedCase("paged_large", SILU, n=512, page=256, pages=3, table=torch.int64),
    PagedCase("paged_large_causal", CAUSAL, m=70, n=384, page=128, pages=7),
    PagedCase("paged_large_length", LENGTH, m=20, n=384, page=64, missing=-1),
    PagedCase("paged_large_jagged", LAST, n=384, page=128, lengths_q=(70, 0, 130, 1), before=2),
    PagedCase("paged_large_split", LAST, m=3, n=1152, b=2, page=64, pages=20),
    PagedCase("paged_odd", "sigmoid(s)", n=7 * 24, page=24, table=torch.uint8),
    PagedCase("paged_one", "sigmoid(s)", n=48, pages=1),
    PagedCase("paged_shared_table", SILU, n=48, tables=1, b=3),
    PagedCase("paged_as_many_pages_as_sequences", SILU, n=48, pages=2),
    PagedCase("paged_shared_queries", SILU, n=48, bq=1),
    PagedCase("paged_gqa", SILU, n=96, h=4, hk=2, hv=1, dv=24, view="bnhd"),
    PagedCase("paged_causal", CAUSAL, m=70, n=208),
    PagedCase("paged_length", LENGTH, m=20, n=304, view="split"),
    PagedCase("paged_bias", "a0:f[h,q_idx,kv_idx]; sigmoid(add(s,a0))", n=80),
    PagedCase("paged_dynamic", "sigmoid(s)", n=80, dynamic=True),
    PagedCase("paged_wide", SILU, n=96, wide=True),
    PagedCase("paged_missing", "sigmoid(s)", n=80, missing=5),
    PagedCase("paged_negative", LENGTH, m=20, n=304, missing=-1),
    PagedCase("paged_none", SILU, n=0),
    PagedCase("paged_jagged", SILU, n=96, lengths_q=(5, 0, 40, 1)),
    PagedCase("paged_jagged_halves", LAST, n=400, lengths_q=(70, 0, 130, 1), before=2, after=3),
    WrittenCase("paged_written", SILU, n=96),
    WrittenCase("paged_written_split", SILU, page=48, **FEW),
    PagedCase("paged_split", "sigmoid(s)", **FEW),
    PagedCase("paged_split_last", LAST, **FEW),
    PagedCase("paged_split_slots", SILU, page=1, pages=40, **FEW),
    PagedCase("paged_split_jagged", LAST, n=1104, lengths_q=(3, 0, 20, 1, 2), max_q=16),
    PagedCase("paged_split_dynamic", LENGTH, dynamic=True, **FEW),
]  # fmt: skip
