"""An operation is a row: two are added at run time, and go from the model's call to every kernel.

`asinh` has forms in other operations. `atan` is new to the kernels, so each emitter gets a line.
"""

from collections.abc import Iterator

import pytest
import torch

from gdpa_inductor.lowerings.triton import emit
from gdpa_inductor.program import expr, intervals
from gdpa_inductor.program.expr import SCORE, Expr, Op, call
from gdpa_inductor.program.intervals import Interval
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.program.simplify import TRUE
from tests.kernels import render
from tests.kernels.cases import Case

from .._recorder import Recorder

REAL = ("f>f",)


def by_logarithm(x: Expr) -> Expr:
    """asinh |x| = log1p(|x| + x² / (1 + √(x² + 1)))"""
    square, size = x * x, call("abs", x)
    grown = call("log1p", size + square / (1.0 + call("sqrt", square + 1.0)))
    return call("where", call("lt", x, 0.0), -grown, grown)


ROWS = {
    "asinh": Op(
        REAL, torch.asinh, "the inverse of sinh", aten=("asinh",),
        vjp=lambda g, y, x: (g / call("sqrt", x * x + 1.0),),
        interval=intervals.function, plain=by_logarithm,
    ),
    "atan": Op(
        REAL, torch.atan, "the inverse of tan", aten=("atan",),
        vjp=lambda g, y, x: (g / (x * x + 1.0),), interval=intervals.function,
    ),
}  # fmt: skip
NAMES = pytest.mark.parametrize("name", ROWS)


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, row in ROWS.items():
        monkeypatch.setitem(expr.OPS, name, row)
    monkeypatch.setitem(emit.PLAIN, "atan", lambda x: emit.ops.atan(x))
    yield


def attention(name: str):
    function = getattr(torch, name)
    return lambda q, k, v: function(q @ k.mT * 0.3) @ v


def operands(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    matrices = (torch.randn(2, 2, 24, 8, generator=generator, dtype=dtype) for _ in range(3))
    return [x.requires_grad_() for x in matrices]


def trained(function, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    out = function(*leaves)
    return [out, *torch.autograd.grad(out.square().sum(), leaves)]


@NAMES
def test_it_is_found_and_is_what_torch_has(name: str):
    """Matcher, judge, reference and gradient."""
    recorder = Recorder()
    leaves = operands(torch.float64)
    mine = trained(torch.compile(attention(name), backend=recorder), leaves)
    assert f"{name}(mul(s,0.3))" in recorder.graphs[0].after
    torch.testing.assert_close(mine, trained(attention(name), leaves))


@NAMES
def test_the_cpu_kernel_computes_it(name: str):
    leaves = operands(torch.float32)
    options = {"gdpa.profit": False, "gdpa.strict": True}
    mine = trained(torch.compile(attention(name), backend="gdpa", options=options), leaves)
    torch.testing.assert_close(mine, trained(attention(name), leaves), rtol=1e-5, atol=1e-5)


@NAMES
def test_it_has_an_interval(name: str):
    """0 where its operand is."""
    (interval,) = intervals.lift([call(name, SCORE)], lambda leaf: Interval(None, None, TRUE))
    assert interval.zero is TRUE


@NAMES
def test_triton_renders_it(name: str):
    case = Case(name, f"{name}(mul(s,0.3))", n=32, m=32, choice=0)
    source = render.wrapper(case.function(), case.tensors())
    # Of an arc tangent some versions of Inductor write the polynomial.
    marks = {"asinh": ["libdevice.log1p"], "atan": ["libdevice.atan", "0x3B2090AA"]}
    assert any(mark in source for mark in marks[name])


@NAMES
@pytest.mark.parametrize("fast", [False, True], ids=["plain", "fast"])
def test_cute_emits_it(name: str, fast: bool, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("cutlass")
    from gdpa_inductor.kernels.cute import emit as cute
    from tests.kernels.test_cute_emit import GRID, evaluate

    monkeypatch.setitem(cute.PLAIN, "atan", cute._unary("atan"))
    (got,) = evaluate([ScoreMod.parse(f"{name}(mul(s,0.3))")], fast)
    want = ROWS[name].torch(GRID.double() * 0.3)
    assert ((got.double() - want).abs() <= 2.0**-20 * want.abs().clamp(min=1.0)).all()
