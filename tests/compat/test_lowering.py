"""What `_compat.lowering` asks of a graph that Inductor lowers, and has it call.

Most tests read the IR, or the code that is written. The last one compiles code and compares values.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gdpa_inductor._compat import lowering, shapes

from . import lowered as graphs
from .lowered import CPU, calls, code_of, during, layout, lowering_by, noted, probe, sites, written

aten = torch.ops.aten


def test_register_lowering():
    """Also where Inductor has met the operator, and calls it from the generated code."""
    from torch._inductor.lowering import lowerings, make_fallback

    def lower(x, y):
        calls.append((x, y))
        return lowering.lowered(aten.mul.Tensor, x, y)

    calls: list[Any] = []
    known = lowerings.pop(noted, None)
    make_fallback(noted)
    lowering._REGISTERED.discard(noted)
    try:
        for _ in range(2):
            lowering.register_lowering(noted, lower)
        code = code_of(lambda x, y: noted(x, y), (torch.ones(4), torch.ones(4).half()), lower)
        ((x, y),) = calls  # operands keep their dtypes
        assert (x.get_dtype(), y.get_dtype()) == (torch.float32, torch.float16)
        assert "gdpa_compat" not in code.split("def call")[1]
    finally:
        lowerings.pop(noted)
        lowering._REGISTERED.discard(noted)
        if known is not None:
            lowerings[noted] = known


def test_lowered_node_values():
    x, y, size = during(lambda *_: lowering.lowered_node_values(), dynamic=True)
    assert isinstance(x, torch.Tensor) and isinstance(size, torch.SymInt)
    assert [shapes.size_hint(extent) for extent in (*x.shape, *y.shape, size)] == [4, 6, 4, 6, 4]
    assert during(lambda *_: lowering.lowered_node_values())[2] == 4


def test_node_arguments():
    x, y, size = during(lambda *_: lowering.node_arguments(), dynamic=True)
    assert all(isinstance(argument, torch.fx.Node) for argument in (x, y, size))
    assert (x.op, y.op) == ("placeholder", "placeholder")
    assert during(lambda *_: lowering.node_arguments())[2] == 4


def spent(function: Callable, *tensors: torch.Tensor, donated=(0,), views=False) -> list[bool]:
    def look(*_):
        return lowering.spent(lowering.node_arguments(), views=views)

    return during(look, *tensors, function=function, donated=donated)


def test_spent():
    """The memory of a donated input that is read once, and alone in its storage."""
    x, y = torch.ones(4, 6), torch.ones(4, 6)
    call = lambda x, y: probe(x, y, 3)
    assert spent(call, x, y) == [True, False, False]
    assert spent(call, x, y, donated=(0, 1)) == [True, True, False]
    assert spent(lambda x, y: probe(x, x, 3), x, y) == [False, False, False]
    assert spent(lambda x, y: (probe(x, y, 3), x * 2), x, y) == [False, False, False]
    assert spent(lambda x, y: probe(x * 2, y, 3), x, y) == [False, False, False]
    assert spent(call, torch.ones(5, 6)[:4], y) == [False, False, False]
    assert spent(call, *torch.ones(2, 4, 6), donated=(0, 1)) == [False, False, False]
    viewed = lambda x, y: probe(x.view(6, 4).transpose(0, 1), y, 3)
    assert spent(viewed, x, y) == [False, False, False]
    assert spent(viewed, x, y, views=True) == [True, False, False]
    both = lambda x, y: (probe(x.view(6, 4).transpose(0, 1), y, 3), x.sum())
    assert spent(both, x, y, views=True) == [False, False, False]


def test_is_input():
    """Of the operand, a view of it, a computed one, and a copy."""

    def look(x, y, size):
        return lowering.is_input(lowering.realized(x, CPU))

    def of(view: Callable) -> bool:
        return during(look, function=lambda x, y: probe(view(x), y, 3))

    assert of(lambda x: x) and of(lambda x: x.view(6, 4).mT)
    assert not of(lambda x: x + 1) and not of(lambda x: x.mT.clone().mT)


def test_once_per_graph():
    calls = []

    def lower(x, y, size):
        for key in ("a", "b", "a"):
            lowering.once_per_graph((key, size), lambda key=key: calls.append(key))
        return lowering.lowered(aten.add.Tensor, x, y)

    for _ in range(2):
        code_of(
            lambda x, y: (probe(x, y, 3), probe(y, x, 3)), (torch.ones(4), torch.ones(4)), lower
        )
    assert calls == ["a", "b"] * 2


def test_lowered():
    """A call of an ATen operator is fused, as if it stood in the graph."""
    code = written(lambda x, y, size: lowering.lowered(aten.add.Tensor, x, y))
    assert code.count("def call") == 1 and code.count("async_compile.cpp_pybinding(") == 1
    assert "aten.add" not in code.split("def call")[1]
    sizes = during(lambda x, *_: lowering.lowered(aten.reshape.default, x, [24]).get_size())
    assert list(sizes) == [24]


def test_is_in_memory():
    def look(x, y, size):
        moved = lowering.lowered(aten.permute.default, x, [1, 0])
        computed = lowering.lowered(aten.add.Tensor, x, y)
        answers = list(map(lowering.is_in_memory, (x, moved, computed)))
        computed.realize()
        return [*answers, lowering.is_in_memory(computed)]

    assert during(look) == [True, True, False, True]


def test_unwidened():
    """The buffer below a cast to fp32, also through a view; of nothing else."""
    half, plain = torch.ones(4, 6).half(), torch.ones(4, 6)

    def look(x, y, size):
        node = lowering.unwidened(x)
        return node is x, node.get_dtype(), list(node.get_size())

    same = (True, torch.float32, [4, 6])
    narrow = (False, torch.float16, [4, 6])
    assert during(look, half, plain, function=lambda x, y: probe(x.float(), y, 3)) == narrow
    viewed = lambda x, y: probe(x.unsqueeze(0).float().squeeze(0), y, 3)
    assert during(look, half, plain, function=viewed) == narrow
    for function in (
        lambda x, y: probe(x.float() * 2, y, 3),
        lambda x, y: probe(y + x, y, 3),
        lambda x, y: probe(x.view(6, 4).mT.float(), y, 3),
        lambda x, y: probe(x[:1].expand(4, 6).float(), y, 3),
    ):
        assert during(look, half, plain, function=function) == same
    assert during(look, plain, plain, function=lambda x, y: probe(x, y, 3)) == same
    part = lambda x, y: probe(x[:2].float(), y[:2], 3)
    assert during(look, half, plain, function=part) == (True, torch.float32, [2, 6])
    other = lambda x, y: probe(x.double().float(), y, 3)
    assert during(look, plain, plain, function=other)[1] == torch.float32


def test_extern_call():
    """The operator itself is called, with keyword arguments too; it has no lowering of ours."""
    code = written(lambda x, y, size: lowering.extern_call(noted, x, y=y))
    assert len(re.findall(r"torch\.ops\.gdpa_compat\.noted\.default\(", code)) == 1
    several = written(lambda x, y, size: lowering.extern_call(aten.sort.default, x)[0])
    assert "aten.sort" in several.split("def call")[1]


CALLEE = (graphs.__name__, "site", "'here'")


def test_direct_call():
    """The generated code makes the function once, and calls it in place of the operator."""

    def lower(x, y, size):
        return lowering.direct_call(noted, CALLEE, x, y)

    code = written(lower)
    (name,) = re.findall(r"^(gdpa_\w+) = \w+_site\('here'\)", code, re.M)
    assert f"from {graphs.__name__} import site as " in code
    assert len(re.findall(rf"= {name}\(", code.split("def call")[1])) == 1
    assert "gdpa_compat.noted" not in code.split("def call")[1]
    assert "site(" not in written(lower, cpp=True)  # C++ calls the operator


def test_inline_formula():
    """One or several results, each contiguous; sizes are symbols."""

    def look(x, y, size):
        fakes = lowering.lowered_node_values()

        def formula(x, y, size):
            return torch.nn.functional.silu(x).mT * size, (x + y).sum(0)

        one = lowering.inline_formula(lambda x, y, size: (x * y).mT, [x, y, size], fakes)
        return [*map(layout, lowering.inline_formula(formula, [x, y, size], fakes)), layout(one)]

    first, second, one = during(look)
    assert first == ([6, 4], [4, 1]) == one and second == ([6], [1])
    first, second, one = during(look, dynamic=True)
    assert first[1] == [first[0][1], 1] and all(size.is_Symbol for size in first[0])


def test_finish():
    def lower(x, y, size):
        like, wanted, _ = lowering.lowered_node_values()
        buffer = lowering.zeroed((2, 4, 6), torch.float32, CPU)
        add = lambda parts, like, more: parts.sum(0).to(like.dtype) + more
        result = lowering.finish(add, buffer, (2, 4, 6), torch.float32, like, ([y], [wanted]))
        layouts.append((layout(result), result.get_dtype()))
        return result

    layouts: list[Any] = []
    written(lower, torch.ones(4, 6).half(), torch.ones(4, 6).half())
    assert layouts == [(([4, 6], [6, 1]), torch.float16)]


def test_fake():
    fake = during(lambda *_: lowering.fake((2, 3), torch.half, CPU))
    assert isinstance(fake, FakeTensor)
    assert (tuple(fake.shape), fake.dtype, fake.device) == ((2, 3), torch.half, CPU)


def test_likely_size():
    def look(x, y, size):
        n, m = x.get_size()
        return [lowering.likely_size(expression) for expression in (n, size, n * m + 1, 7)]

    assert during(look, dynamic=True) == [4, 4, 25, 7] == during(look)


def test_random_integers():
    def look(x, y, size):
        return lowering.random_integers(x, 3), lowering.random_integers(y, 0)

    for dynamic in (False, True):
        x = torch.ones(40, 6, dtype=torch.int32)
        some, zeros = during(look, x, torch.ones(40, 6), dynamic=dynamic)
        assert some.dtype == torch.int32 and some.shape == (40, 6) and some.is_contiguous()
        assert set(some.unique().tolist()) == {0, 1, 2, 3}
        assert zeros.dtype == torch.float32 and not zeros.any()


def test_values():
    """One compiled graph with what the functions above make, against eager."""
    x, y = torch.randn(4, 6), torch.randn(4, 6)

    def lower(x, y, size):
        fakes = lowering.lowered_node_values()
        copy = lowering.copied(y)
        product = lowering.direct_call(noted, CALLEE, copy, lowering.zeros((4, 6), x.dtype, CPU))
        sums = lowering.zeroed((2, 4, 6), torch.float32, CPU)
        nothing = lowering.finish(
            lambda parts, like: parts.sum(0), sums, (2, 4, 6), torch.float32, fakes[0]
        )
        other = lowering.extern_call(noted, lowering.contiguous(x), nothing)
        scaled = lowering.inline_formula(
            lambda x, y, size: (x.mT + y.mT * size).mT, [x, copy, size], fakes
        )
        for more in (product, other):
            scaled = lowering.lowered(aten.add.Tensor, scaled, more)
        return scaled

    sites.clear(), calls.clear()
    with lowering_by(lower):
        run = torch.compile(lambda x, y: probe(x, y, x.shape[0]), backend="inductor")
        for _ in range(2):
            torch.testing.assert_close(run(x, y), x + y * 4)
    assert sites == ["here"] and calls == ["here"] * 2
