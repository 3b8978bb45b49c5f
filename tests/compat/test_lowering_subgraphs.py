"""What `_compat.lowering` writes inside of kernels: of Inductor's own, and of a Triton template."""

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch._inductor import ir
from torch._inductor.virtualized import MockHandler, V

from gdpa_inductor._compat import lowering

from .lowered import CPU, during, written

F32, I32, I64 = torch.float32, torch.int32, torch.int64
op = lowering.inductor_op


@pytest.fixture
def template():
    """A Triton template, whose subgraphs the functions below are for."""
    pytest.importorskip("triton")
    from . import template

    return template


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.arange(48).view(6, 8)
    return torch.randn(6, 8), (numbers % 5).to(torch.int32)


def recorded(body: Callable[[], Any]) -> list[str]:
    """What a subgraph asks for while no kernel is written, as torch 2.14 runs it at first."""
    loads: list[str] = []

    class Records(MockHandler):
        def load(self, name, index):
            loads.append(name)
            return super().load(name, index)

    with V.set_ops_handler(Records()):
        body()
    return loads


def test_inductor_op():
    """Inside of a kernel: the results have arithmetic operators."""

    def lower(x, y, size):
        def body(index):
            value = lowering.inductor_op("tanh", x.make_loader()(index))
            return value * 2 + lowering.inductor_op("constant", 0.5, torch.float32)

        term = ir.Pointwise.create(
            device=CPU, dtype=torch.float32, inner_fn=body, ranges=x.get_size()
        )
        return term

    code = written(lower)
    assert "tanh" in code and "0.5" in code


def test_computed_scalar():
    def look(*_):
        body = lambda index: lowering.inductor_op("constant", 2.5, torch.float32)
        buffer = lowering.computed_scalar(body, CPU, torch.float32)
        assert isinstance(buffer, ir.ComputedBuffer)
        return list(buffer.get_size()), buffer.get_dtype(), buffer.get_device()

    assert during(look) == ([], torch.float32, CPU)


def test_fixed_input(template, monkeypatch):
    """An input is of the dtype that is said: integers divide as integers, truths choose."""
    x, y = operands()

    def term(size):
        row, s = lowering.fixed_input("q_idx", I32), lowering.fixed_input("s", F32)
        half = op("floordiv", row - 3, op("constant", 2, I32))
        whole = op("to_dtype", half, F32) + op("to_dtype", lowering.fixed_input("a0", I32), F32)
        return op("where", lowering.fixed_input("keep", torch.bool), s, whole)

    for dynamic in (False, True):
        output = template.run(template.rendered(term, (x, y), dynamic), (x, y), monkeypatch)
        row = torch.arange(6)[:, None]
        torch.testing.assert_close(output, 6 * torch.where(row % 2 == 0, x, (row - 3) // 2 + y))
    assert recorded(lambda: term(6)) == ["q_idx", "s", "a0", "keep"]


def test_symbolic_scalar(template, monkeypatch):
    """A number, a symbol and an expression of one, as integers of the kernel."""
    x, y = operands()

    def term(size):
        three = lowering.symbolic_scalar(3, I64)
        more = lowering.symbolic_scalar(size, I64) * lowering.symbolic_scalar(2 * size + 1, I64)
        return lowering.fixed_input("s", F32) + op("to_dtype", three + more, F32)

    for dynamic in (False, True):
        output = template.run(template.rendered(term, (x, y), dynamic), (x, y), monkeypatch)
        torch.testing.assert_close(output, 6 * (x + 3 + 6 * 13))
    assert recorded(lambda: term(6)) == ["s"]


def test_plain_integer(template, monkeypatch):
    """It bounds a loop of the template: a number, or an argument of the kernel."""
    x, y = operands()
    term = lambda size: lowering.fixed_input("s", F32)
    for dynamic in (False, True):
        code = template.rendered(term, (x, y), dynamic)
        torch.testing.assert_close(template.run(code, (x, y), monkeypatch), 6 * x)
    assert recorded(lambda: lowering.plain_integer(sympy.Symbol("s0", integer=True))) == []


def test_rounded_to_tf32(template):
    """By the instruction that rounds to the nearest, of a kernel on its own."""

    def lower(x, y, size):
        return lowering.rounded_to_tf32(x)

    code = template.rendered(None, (torch.randn(6, 8), torch.randn(6, 8)), lower=lower)
    assert "cvt.rna.tf32.f32 $0, $1;" in code and "tl.inline_asm_elementwise" in code
