"""What `_compat.shapes` knows of symbolic sizes, and that it adds no guard."""

from collections.abc import Callable, Iterator

import pytest
import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from gdpa_inductor._compat import shapes


@pytest.fixture
def guarded_env() -> ShapeEnv:
    return ShapeEnv()


@pytest.fixture
def env(guarded_env) -> Iterator[ShapeEnv]:
    """It is left without a guard."""
    yield guarded_env
    assert not guarded_env.guards and not guarded_env.replacements


def symbolic(env: ShapeEnv, *size: int, strides: tuple[int, ...] | None = None) -> torch.Tensor:
    """A fake tensor, each of whose sizes above 1 is a symbol of its own."""
    mode = FakeTensorMode(shape_env=env)
    kinds = [DimDynamic.DYNAMIC if extent > 1 else DimDynamic.STATIC for extent in size]
    real = torch.empty(size) if strides is None else torch.empty_strided(size, strides)
    context = StatelessSymbolicContext(kinds)
    return mode.from_tensor(real, symbolic_context=context, static_shapes=False)


def unknown(env: ShapeEnv) -> torch.SymInt:
    """A size that follows from data, as `x.item()` gives it."""
    return env.create_unbacked_symint()


def test_statically_known_true(env):
    n, m = symbolic(env, 5, 7).shape
    assert shapes.statically_known_true(True) and not shapes.statically_known_true(False)
    assert shapes.statically_known_true(n + m == m + n)
    assert not shapes.statically_known_true(n == 5) and not shapes.statically_known_true(n == m)
    assert not shapes.statically_known_true(unknown(env) == 3)


def test_asks_for_elements(env):
    with pytest.raises(Exception) as error:
        bool(unknown(env) == 3)
    assert shapes.asks_for_elements(error.value)
    assert not shapes.asks_for_elements(ValueError("another"))


def test_size_hint(env):
    (n,) = symbolic(env, 5).shape
    assert (shapes.size_hint(3), shapes.size_hint(n), shapes.size_hint(2 * n + 1)) == (3, 5, 11)
    assert shapes.size_hint(unknown(env)) is None and shapes.size_hint(n + unknown(env)) is None


def test_contiguous_strides(env):
    n, m = symbolic(env, 5, 7).shape
    for size in ((2, 3, 4), (4,), (), (0, 3)):
        assert shapes.contiguous_strides(size) == torch.empty(size).stride()
    strides = shapes.contiguous_strides((2, n, m))
    assert list(map(shapes.size_hint, strides)) == [35, 7, 1]
    assert shapes.contiguous_strides((2, 3, 4), (1, 0, 2)) == (4, 8, 1)


def test_dense_strides(env):
    plain, moved = torch.empty(2, 3, 4, 5), torch.empty(2, 4, 3, 5).transpose(1, 2)
    for tensor in (plain, moved):
        assert shapes.dense_strides(tensor) == tensor.stride()
    for tensor in (torch.empty(2, 3, 5, 4).mT, torch.empty(3, 1, 5).expand(2, 3, 4, 5)):
        assert shapes.dense_strides(tensor) == plain.stride()
    lies = symbolic(env, 2, 3, 4, 5, strides=moved.stride())
    assert list(map(shapes.size_hint, shapes.dense_strides(lies))) == list(moved.stride())


def test_hint_of(env):
    (n,) = symbolic(env, 5).shape
    assert [shapes.hint_of(x) for x in (3, 0.5, "text", n, 2 * n)] == [3, 0.5, "text", 5, 10]
    assert shapes.hint_of(torch.sym_float(n) / 2) == 2.5
    assert shapes.hint_of(n == 5) and not shapes.hint_of(n == 6)
    some = unknown(env)
    assert shapes.hint_of(some) is None and shapes.hint_of(some * 0 + 3) == 3


def test_size_bounds(env):
    (n,) = symbolic(env, 5).shape
    some = unknown(env)
    torch._check(some >= 3)
    torch._check(some <= 9)
    assert shapes.size_bounds(some) == (3, 9) and shapes.size_bounds(2 * some + 1) == (7, 19)
    low, high = shapes.size_bounds(n)
    assert (low == 2 and high is None) or high > 1 << 40


def test_guarded_equal(guarded_env):
    n, m, other = symbolic(guarded_env, 5, 5, 6).shape
    assert not shapes.guarded_equal(n, other) and not shapes.guarded_equal(n, unknown(guarded_env))
    assert not guarded_env.guards
    assert shapes.guarded_equal(n, m)
    assert shapes.statically_known_true(n == m)  # from now on


def test_guarded_equal_of_nested_tensors():
    """The ragged size of a nested tensor stands for its offsets: as hints they are one object."""
    answers = []

    def backend(gm, inputs):
        ragged = [
            node.meta["example_value"].shape[1]
            for node in gm.graph.nodes
            if node.op == "placeholder" and getattr(node.meta["example_value"], "is_nested", False)
        ]
        answers.extend(shapes.guarded_equal(ragged[0], other) for other in ragged[1:])
        return gm.forward

    values, offsets = torch.randn(7, 4), torch.tensor([0, 3, 7])
    x, y = (torch.nested.nested_tensor_from_jagged(v, offsets) for v in (values, values * 2))
    z = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 7]))
    torch.compile(lambda x, y, z: (x * 2, y * 2, z * 2), backend=backend)(x, y, z)
    assert answers == [True, False]


def test_exact_quotient(env):
    n, m = symbolic(env, 6, 7).shape
    assert shapes.exact_quotient(12, 4) == 3
    assert shapes.exact_quotient(12, 5) is None and shapes.exact_quotient(12, 0) is None
    assert shapes.exact_quotient(5 * n - 5, n - 1) == 5
    quotient = shapes.exact_quotient(n * m * 4, 2 * m)
    assert shapes.statically_known_true(quotient == 2 * n) and shapes.hint_of(quotient) == 12
    assert shapes.exact_quotient(n, m) is None and shapes.exact_quotient(n, 2) is None
    some = unknown(env)
    assert shapes.hint_of(shapes.exact_quotient(some * n, n)) is None
    assert shapes.exact_quotient(12, n) is None


def test_without_guards(guarded_env):
    x = symbolic(guarded_env, 5, 7)
    with shapes.without_guards(x.fake_mode):
        assert x.shape[0] == 5 and x.shape[0] != x.shape[1]
    assert not guarded_env.guards and not guarded_env.replacements
    assert x.shape[1] == 7
    assert guarded_env.guards or guarded_env.replacements
    with shapes.without_guards(FakeTensorMode()):  # it has no symbols
        pass


def test_expression_of(env):
    n, m = symbolic(env, 5, 7).shape
    actual = shapes.expression_of(2 * n + m)
    left, right = shapes.expression_of(n), shapes.expression_of(m)
    assert left.is_Symbol and actual == 2 * left + right and actual.free_symbols == {left, right}
    assert shapes.expression_of(torch.sym_float(n)).free_symbols == {left}


def test_is_constant(env):
    (n,) = symbolic(env, 5).shape
    assert not shapes.is_constant(n) and not shapes.is_constant(unknown(env))
    assert shapes.is_constant(n * 0 + 3) and shapes.is_constant(n - n + 1)


def test_without_hint(env):
    (n,) = symbolic(env, 5).shape
    expression = shapes.expression_of(n) * 2
    size = shapes.without_hint(expression, n)
    assert isinstance(size, torch.SymInt) and shapes.expression_of(size) == expression
    of_float = shapes.without_hint(expression, torch.sym_float(n))
    assert shapes.expression_of(of_float) == expression


def test_size_expr(env):
    (n,) = symbolic(env, 5).shape
    assert shapes.size_expr(3) == sympy.Integer(3)
    assert shapes.size_expr(2 * n) == 2 * shapes.expression_of(n)


def values(function: Callable, *ranges: range) -> None:
    """`made` gives the same of numbers as of symbols that are replaced by them."""
    symbols = sympy.symbols(f"x:{len(ranges)}", integer=True, positive=True)
    for numbers in zip(*ranges, strict=True):
        actual = function(*symbols).subs(dict(zip(symbols, numbers, strict=True)))
        assert actual == function(*map(sympy.Integer, numbers))


def test_listed_work_tiles():
    for total in (1, 63, 64, 65, 200):
        assert shapes.listed_work_tiles(sympy.Integer(total), sympy.Integer(3), 64) == (
            total // 64 + 3
        )
    values(
        lambda total, batch: shapes.listed_work_tiles(total, batch, 64), range(1, 140, 21), range(7)
    )


def test_work_tiles_each():
    for longest, wanted in ((0, 1), (1, 1), (64, 1), (65, 2), (200, 4)):
        assert shapes.work_tiles_each(sympy.Integer(longest), 64) == wanted
    values(lambda longest: shapes.work_tiles_each(longest, 64), range(1, 140, 21))


def test_known_equal(guarded_env):
    """Also by halves of an even size, below torch 2.15 too; and without a guard of its own."""
    n, m = symbolic(guarded_env, 6, 7).shape
    assert shapes.known_equal(3, 3) and not shapes.known_equal(3, 4)
    assert shapes.known_equal(n + m, m + n) and not shapes.known_equal(n, m)
    assert not shapes.known_equal(2 * (n // 2), n)
    assert n % 2 == 0  # a guard
    guards = len(guarded_env.guards)
    assert shapes.known_equal(2 * (n // 2), n) and shapes.known_equal(n * m, m * (n // 2) * 2)
    assert not shapes.known_equal(3 * (n // 2), n) and not shapes.known_equal(2 * (m // 2), m)
    assert not shapes.known_equal(unknown(guarded_env) // 2, n)
    assert len(guarded_env.guards) == guards
