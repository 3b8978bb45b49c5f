"""Programs that look up tables, on a CPU in blocks and in chunks: values and gradients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gdpa_inductor.kernels.blocked import block_pass
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.rejection import GDPAError
from tests._judge import difference, results

from .operators import CPU, FORMS, Differentiable, Operators, as_they_are, in_form

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
    "[b,h,q_idx,t]: q·r of Transformer-XL": Table(
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
    "a mask": Table(
        f"a0:f[h,t]; where(and(ge(q_idx,kv_idx),gt({POSITION},0.0)),silu(s),0.0)",
        {"table": [HEADS, ROWS + COLS - 1]},
        lambda s, table: torch.where(by_distance(table) > 0, F.silu(s), 0.0).tril(),
    ),
    "a mask for each query": Table(
        f"a0:f[h,q_idx,t]; where(gt({POSITION},0.0),silu(s),0.0)",
        {"table": [HEADS, ROWS, ROWS + COLS - 1]},
        lambda s, table: torch.where(
            table.gather(-1, (DISTANCE + COLS - 1).expand(HEADS, -1, -1)) > 0, F.silu(s), 0.0
        ),
    ),
    "by a place that rounds": Table(
        "a0:f[h,t]; silu(add(s,lookup(a0,int(sqrt(float(maximum(sub(q_idx,kv_idx),0)))))))",
        {"table": [HEADS, PLACES]},
        lambda s, table: F.silu(s + table[:, DISTANCE.clamp(min=0).sqrt().long()]),
    ),
    "by the score": Table(
        "a0:f[h,t]; mul(s,lookup(a0,int(minimum(maximum(s,0.0),8.0))))",
        {"table": [HEADS, PLACES]},
        lambda s, table: s * table[
            torch.arange(HEADS)[:, None, None], s.detach().clamp(0.0, 8.0).long()
        ],
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
    return by_the_rule(case, operators, {**matrices(dtype, heads), **case.operands(dtype)})


def by_the_rule(case: Table, operators: Operators, operands: Mapping[str, Tensor]) -> str:
    wide = {
        name: t.detach().double().requires_grad_() if t.requires_grad else t
        for name, t in operands.items()
    }
    sides = [(fused(case, operators), operands), (eager(case), operands), (eager(case), wide)]
    return difference(*(results(function, given) for function, given in sides))


@pytest.fixture(params=["blocks", *FORMS])
def operators(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Those of `in_form`, not compiled."""
    as_they_are(monkeypatch)
    yield from in_form(request, monkeypatch)


@pytest.mark.parametrize("name", CASES)
def test_every_form(operators: Operators, name: str) -> None:
    assert not breach(CASES[name], operators)
    assert not breach(CASES[name], operators, heads=(2, 1))


HSTU = CASES["HSTU: position and time"]
FEW = {"[t,h] by position", "[b,h,q_idx,t]: q·r of Transformer-XL", "causal, clamped"}


@pytest.mark.parametrize(
    "name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_compiled(name: str) -> None:
    assert not breach(CASES[name], CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_error_rule(dtype: torch.dtype) -> None:
    assert not breach(HSTU, CPU, dtype)


def test_sums_of_many_terms_are_as_exact_as_eager_s() -> None:
    """All scores read one of two places."""
    at = torch.arange(500).remainder(7).eq(0).long().expand(600, 500)
    text = "a0:f[h,t]; a1:i[q_idx,kv_idx]; silu(add(s,lookup(a0,a1)))"
    case = Table(text, {}, lambda s, table, at: F.silu(s + table[:, at]))
    drawn = {"query": (600, 8), "key": (500, 8), "value": (500, 8)}
    operands = {name: torch.randn(1, 2, *size).abs() for name, size in drawn.items()}
    operands["table"] = torch.randn(2, 2)
    operands = {name: t.requires_grad_() for name, t in operands.items()} | {"at": at}
    assert not by_the_rule(case, CPU, operands)


OUTSIDE = "a0:f[h,t]; a1:i[q_idx,kv_idx]; silu(add(s,lookup(a0,a1)))"


def test_a_place_outside_of_a_table(operators: Operators) -> None:
    """NaN; no gradient of the table, and no other element is read or added to."""
    ends = [-(1 << 63), -1, PLACES, 1 << 40, (1 << 63) - 1]
    at = torch.randint(0, PLACES, (ROWS, COLS))
    at[::9, 5] = torch.tensor(ends)
    table = torch.randn(HEADS, PLACES, dtype=torch.float64)
    needs = [False, False, False, True, False]
    q, k, v, g = (torch.randn(1, HEADS, n, 8).double() for n in (ROWS, COLS, COLS, ROWS))
    operands = (q, k, v, [table, at], [], OUTSIDE)
    mine = [operators.forward(*operands), *operators.backward(g, *operands, needs)]
    theirs = [torch.ops.gdpa.attention(*operands, "")]
    theirs += torch.ops.gdpa.attention_backward(g, *operands, needs, "")
    torch.testing.assert_close(mine, theirs, equal_nan=True)
    rows = torch.arange(ROWS).remainder(9) == 0
    assert torch.equal(mine[0].isnan().all(-1)[0, 0], rows) and mine[1].isfinite().all()


def test_equal_bits_from_run_to_run() -> None:
    operands = {**matrices(torch.float32), **HSTU.operands(torch.float32)}
    first = results(fused(HSTU, CPU), operands)
    for _ in range(20):
        again = results(fused(HSTU, CPU), operands)
        for kind in ("outputs", "gradients"):
            pairs = zip(getattr(again, kind).values(), getattr(first, kind).values(), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)


def call_of(dtype: torch.dtype) -> tuple[object, ...]:
    tensors = [t.detach() for t in (matrices(dtype) | HSTU.operands(dtype)).values()]
    return (*tensors[:3], tensors[3:], [], str(ScoreMod.parse(HSTU.text)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(dtype: torch.dtype) -> None:
    operands = call_of(dtype)
    torch.library.opcheck(CPU.forward, operands)
    grad_out = torch.randn(BATCH, HEADS, ROWS, 20, dtype=dtype)
    needs = [True, False, False, True, False, True]
    torch.library.opcheck(CPU.backward, (grad_out, *operands, needs))


def test_few_compiles_serve_all_lengths() -> None:
    """And all sizes of tables, which differ from each other or do not."""
    text = HSTU.text.replace("52", "i0").replace("add(s,", "add(mul(s,0.3719),")
    before = block_pass._variant.cache_info().misses
    for length in range(2, 300, 23):
        q, k, v = torch.randn(3, 2, HEADS, length, 8)
        aux = [torch.randn(HEADS, 2 * length - 1), torch.randint(0, 9, (2, length, length)),
               torch.randn(9 if length % 2 else 2 * length - 1)]  # fmt: skip
        operands = (q, k, v, aux, [length - 1], text)
        expected = torch.ops.gdpa.attention(*operands, "")
        torch.testing.assert_close(CPU.forward(*operands), expected, equal_nan=True)
    assert block_pass._variant.cache_info().misses - before <= 4


@pytest.mark.parametrize("options", ["", "kernel=chunked", "kernel=reference"])
def test_through_inductor_with_symbolic_lengths(options: str) -> None:
    """Compiled once for all lengths, and the table's with them."""
    text = HSTU.text.replace("52", "i0")

    def model(q: Tensor, k: Tensor, v: Tensor, table: Tensor, at: Tensor, time: Tensor) -> Tensor:
        aux, scalars = [table, at, time], [q.shape[2] - 1]
        return torch.ops.gdpa.attention(q, k, v, aux, scalars, text, options).relu()

    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for length in (20, 33):
        shapes = [(2, 2, length, 8)] * 3 + [(2, 2 * length - 1), (PLACES,)]
        q, k, v, table, time = (torch.randn(x).requires_grad_() for x in shapes)
        at = torch.randint(0, PLACES, (2, length, length), dtype=torch.uint8)
        outs = [f(q, k, v, table, at, time) for f in (compiled, model)]
        weighting = torch.randn_like(outs[0])
        leaves = [q, k, v, table, time]
        grads = [torch.autograd.grad((out * weighting).sum(), leaves) for out in outs]
        torch.testing.assert_close(*outs)
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


def test_no_second_derivative() -> None:
    operands = {**matrices(torch.float64), **HSTU.operands(torch.float64)}
    q, k, v, *aux = operands.values()
    out = torch.ops.gdpa.attention(q, k, v, aux, [], HSTU.text, "")
    (grad,) = torch.autograd.grad(out.sum(), aux[0], create_graph=True)
    with pytest.raises(GDPAError, match="no second derivative"):
        grad.sum().backward()


def test_exported() -> None:
    class Model(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, *aux: Tensor) -> Tensor:
            return torch.ops.gdpa.attention(q, k, v, list(aux), [], HSTU.text, "")

    q, k, v, aux, *_ = call_of(torch.float32)
    program = torch.export.export(Model(), (q, k, v, *aux)).run_decompositions()
    torch.testing.assert_close(program.module()(q, k, v, *aux), Model()(q, k, v, *aux))
