"""Programs that look up tables, on a CPU in blocks and in chunks: values and gradients."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests._judge import difference, results

from .operators import (
    CHUNKED,
    CPU,
    FORMS,
    Differentiable,
    Operators,
    as_they_are,
    in_chunks,
    in_small_blocks,
)

SIZES = BATCH, HEADS, ROWS, COLS = 2, 4, 37, 53
PLACES = 9
DISTANCE = torch.arange(ROWS)[:, None] - torch.arange(COLS)


@dataclass(frozen=True)
class Table:
    """A program beside the same in plain torch: the weights from scores and operands."""

    text: str
    shapes: Mapping[str, Sequence[int]]  # of tables and, in `integers`, of other operands
    weights: Callable[..., Tensor]
    integers: Mapping[str, torch.dtype] = ()
    scalars: Sequence[int] = ()

    def operands(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """By name, in the order of the program; the tables require gradients."""
        drawn = {}
        for name, shape in self.shapes.items():
            if name in self.integers:
                drawn[name] = torch.randint(0, PLACES, shape).to(self.integers[name])
            else:
                drawn[name] = torch.randn(shape, dtype=dtype).requires_grad_()
        return drawn


def by_distance(table: Tensor) -> Tensor:
    """[..., T] at q_idx - kv_idx: [..., M, N]."""
    return table[..., DISTANCE + COLS - 1]


POSITION = "lookup(a0,add(sub(q_idx,kv_idx),52))"
INDEX = [BATCH, ROWS, COLS]
UINT8, INT16 = {"at": torch.uint8}, {"at": torch.int16}
CASES = {
    "[t] by position": Table(
        f"a0:f[t]; silu(add(s,{POSITION}))",
        {"table": [ROWS + COLS - 1]},
        lambda s, table: F.silu(s + by_distance(table)),
    ),
    "[h,t] by position, a scalar": Table(
        "a0:f[h,t]; silu(add(s,lookup(a0,add(sub(q_idx,kv_idx),i0))))",
        {"table": [HEADS, ROWS + COLS - 1]},
        lambda s, table: F.silu(s + by_distance(table)),
        scalars=[COLS - 1],
    ),
    "[t,h] by position": Table(
        f"a0:f[t,h]; silu(add(s,{POSITION}))",
        {"table": [ROWS + COLS - 1, HEADS]},
        lambda s, table: F.silu(s + by_distance(table.T)),
    ),
    "[t,-,h], multiplied": Table(
        f"a0:f[t,-,h]; mul(silu(s),{POSITION})",
        {"table": [ROWS + COLS - 1, 1, HEADS]},
        lambda s, table: F.silu(s) * by_distance(table[:, 0].T),
    ),
    "[b,h,t] by position": Table(
        f"a0:f[b,h,t]; silu(add(s,{POSITION}))",
        {"table": [BATCH, HEADS, ROWS + COLS - 1]},
        lambda s, table: F.silu(s + by_distance(table)),
    ),
    "[h,q_idx,t]: q·r of Transformer-XL": Table(
        f"a0:f[b,h,q_idx,t]; silu(add(s,{POSITION}))",
        {"table": [BATCH, HEADS, ROWS, ROWS + COLS - 1]},
        lambda s, table: F.silu(
            s + table.gather(-1, (DISTANCE + COLS - 1).expand(BATCH, HEADS, -1, -1))
        ),
    ),
    "[kv_idx,t] of every key": Table(
        "a0:f[kv_idx,t]; a1:i[q_idx]; silu(add(s,lookup(a0,a1)))",
        {"table": [COLS, PLACES], "at": [ROWS]},
        lambda s, table, at: F.silu(s + table.T[at.long()]),
        integers=UINT8,
    ),
    "[t] by an operand of all scores": Table(
        "a0:f[t]; a1:i[b,q_idx,kv_idx]; silu(add(s,lookup(a0,a1)))",
        {"table": [PLACES], "at": INDEX},
        lambda s, table, at: F.silu(s + table[at.long()][:, None]),
        integers=UINT8,
    ),
    "[h,t] by an operand, int16": Table(
        "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; silu(add(s,lookup(a0,a1)))",
        {"table": [HEADS, PLACES], "at": INDEX},
        lambda s, table, at: F.silu(s + table[:, at.long()].transpose(0, 1)),
        integers=INT16,
    ),
    "[h,t] by an operand that precedes it, int64": Table(
        "a0:i[q_idx,kv_idx]; a1:f[h,t]; silu(add(s,lookup(a1,a0)))",
        {"at": [ROWS, COLS], "table": [HEADS, PLACES]},
        lambda s, at, table: F.silu(s + table[:, at]),
        integers={"at": torch.int64},
    ),
    "[h,t] by rows of the batch": Table(
        "a0:f[h,t]; a1:i[b,q_idx]; silu(add(s,lookup(a0,a1)))",
        {"table": [HEADS, PLACES], "at": [BATCH, ROWS]},
        lambda s, table, at: F.silu(s + table[:, at.long()].transpose(0, 1)[..., None]),
        integers=UINT8,
    ),
    "[t] by the head": Table(
        "a0:f[t]; silu(mul(s,lookup(a0,h)))",
        {"table": [PLACES]},
        lambda s, table: F.silu(s * table[:HEADS, None, None]),
    ),
    "[t] by a literal": Table(
        "a0:f[t]; silu(mul(s,lookup(a0,3)))",
        {"table": [PLACES]},
        lambda s, table: F.silu(s * table[3]),
    ),
    "of one place": Table(
        "a0:f[h,t]; a1:i[q_idx,kv_idx]; silu(add(s,lookup(a0,mul(a1,0))))",
        {"table": [HEADS, 1], "at": [ROWS, COLS]},
        lambda s, table, at: F.silu(s + table[:, :, None]),
        integers=UINT8,
    ),
    "HSTU: position and time": Table(
        f"a0:f[h,t]; a1:i[b,q_idx,kv_idx]; a2:f[t]; silu(add(add(s,{POSITION}),lookup(a2,a1)))",
        {"table": [HEADS, ROWS + COLS - 1], "at": INDEX, "time": [PLACES]},
        lambda s, table, at, time: F.silu(s + by_distance(table) + time[at.long()][:, None]),
        integers=UINT8,
    ),
    "causal, clamped": Table(
        "a0:f[h,t]; where(ge(q_idx,kv_idx),"
        "silu(add(s,lookup(a0,minimum(maximum(sub(q_idx,kv_idx),0),8)))),0.0)",
        {"table": [HEADS, PLACES]},
        lambda s, table: F.silu(s + table[:, DISTANCE.clamp(0, 8)]).tril(),
    ),
    "without the score": Table(
        f"a0:f[h,t]; {POSITION}",
        {"table": [HEADS, ROWS + COLS - 1]},
        lambda s, table: by_distance(table).expand_as(s),
    ),
}  # fmt: skip


def matrices(dtype: torch.dtype, heads: tuple[int, int] = (HEADS, HEADS)) -> dict[str, Tensor]:
    shapes = {
        "query": (HEADS, ROWS, 12),
        "key": (heads[0], COLS, 12),
        "value": (heads[1], COLS, 20),
    }
    return {
        name: torch.randn(BATCH, *shape, dtype=dtype).requires_grad_()
        for name, shape in shapes.items()
    }


def eager(case: Table) -> Callable[..., Tensor]:
    def formula(query: Tensor, key: Tensor, value: Tensor, **aux: Tensor) -> Tensor:
        heads = query.shape[1]
        key, value = (t.repeat_interleave(heads // t.shape[1], 1) for t in (key, value))
        return case.weights(query @ key.mT, *aux.values()) @ value

    return formula


def fused(case: Table, operators: Operators) -> Callable[..., Tensor]:
    def call(query: Tensor, key: Tensor, value: Tensor, **aux: Tensor) -> Tensor:
        scalars, matrices = list(case.scalars), (query, key, value)
        return Differentiable.apply(operators, {}, case.text, scalars, *matrices, *aux.values())

    return call


def breach(
    case: Table,
    operators: Operators,
    dtype: torch.dtype = torch.float64,
    heads: tuple[int, int] = (HEADS, HEADS),
) -> str:
    """How the operators break the error rule, or ""."""
    operands = {**matrices(dtype, heads), **case.operands(dtype)}
    wide = {
        name: t.detach().double().requires_grad_() if t.requires_grad else t
        for name, t in operands.items()
    }
    sides = [(fused(case, operators), operands), (eager(case), operands), (eager(case), wide)]
    return difference(*(results(function, given) for function, given in sides))


@pytest.fixture(params=["blocks", *FORMS])
def operators(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Operators]:
    """Of a CPU, in small blocks; or in chunks of a form. Not compiled."""
    as_they_are(monkeypatch)
    if request.param == "blocks":
        in_small_blocks(monkeypatch)
        yield CPU
    else:
        with in_chunks(request.param, monkeypatch):
            yield CHUNKED


@pytest.mark.parametrize("name", CASES)
def test_every_form(operators: Operators, name: str) -> None:
    assert not breach(CASES[name], operators)
    assert not breach(CASES[name], operators, heads=(2, 1))


@pytest.mark.parametrize("name", CASES)
def test_compiled_by_the_error_rule(name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        fault = breach(CASES[name], CPU, dtype)
        assert not fault, f"{dtype}: {fault}"
