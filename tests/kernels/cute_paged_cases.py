"""Problems for the Hopper forward whose keys and values lie in pages."""

import dataclasses
from dataclasses import dataclass

import torch

from gdpa_inductor.operands import Operands

from .cute_cases import CAUSAL, F16, SELF, SILU, Case, Forward

LENGTH = "a0:i[b]; where(lt(kv_idx,mul(a0,2)),sigmoid(s),0.0)"
POLE = "where(eq(s,0.0),div(1.0,s),sigmoid(s))"  # keys past the end would give NaN


@dataclass(frozen=True)
class Paged(Case):
    """key [pages, hk, page, d], value [pages, hv, page, dv], and a table of n // page pages."""

    page: int = 16
    pages: int = 9
    tables: int = 0  # sequences that the table has, by default all
    table: torch.dtype = torch.int32

    def operands(self) -> Operands[torch.Tensor]:
        o = super().operands()
        hk = self.hk or self.h
        widths = ((hk, self.d), (self.hv or hk, self.dv or self.d))
        key, value = (self._pool(heads, width) for heads, width in widths)
        batch = self.tables or len(self.q_lengths) or self.b
        table = torch.randint(self.pages, (batch, self.n // self.page)).to(self.table)
        return dataclasses.replace(o, key=key, value=value, page_table=table)

    def _pool(self, heads: int, width: int) -> torch.Tensor:
        if self.view == "bnhd":
            pool = torch.randn(self.pages, self.page, heads, width).transpose(1, 2)
        else:
            pool = torch.randn(self.pages, heads, self.page, width)
        return pool.to(self.dtype)


CASES = (
    Paged("16 rows", m=100, n=304, b=2, h=2, hk=1),
    Paged("16 rows of a narrow head", POLE, d=64, m=200, n=400, view="bnhd", ctas=2),
    Paged("8 rows", d=72, dv=40, page=8, m=70, n=144, table=torch.int64),
    Paged("32 rows, causal", CAUSAL.format(SILU), d=64, page=32, m=300, n=320, dtype=F16),
    Paged("64 rows", POLE, page=64, m=140, n=320, b=2, tables=1),
    Paged("128 rows", POLE, page=128, m=140, n=384, b=2, table=torch.int64, view="bnhd"),
    Paged("256 rows", page=256, m=100, n=512, b=2),
    Paged("as many as sequences", page=64, pages=2, m=70, n=128, b=2),
    Paged("one page", page=64, pages=1, m=70, n=64, b=3),
    Paged("a length", LENGTH, page=16, m=70, n=304, b=2),
    Paged("jagged queries", SILU, page=16, n=304, q_lengths=SELF),
    Paged("jagged queries, 64-bit table", SILU, page=128, n=256, q_lengths=SELF, table=torch.int64),
    Paged("D 256", d=256, page=16, m=140, n=240),
    Paged("Dv 320", d=64, dv=320, page=16, m=140, n=240),
)  # fmt: skip


def check_missing_page(forward: Forward, page: int, missing: int) -> None:
    """A page that is not there is NaN, in its own sequence alone."""
    case = Paged("missing", d=64, page=page, m=70, n=384, b=2)
    o = case.operands()
    whole = forward(case, o)
    o.page_table[1, 2] = missing
    out = forward(case, o)
    assert out[1].isnan().all()
    assert torch.equal(out[0], whole[0])
