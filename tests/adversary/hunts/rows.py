"""How programs are written as a table, and what makes their operands.

A program's operands are made by a function of nothing that returns a tuple.
"""

import operator
from collections.abc import Callable

import torch

D64, INF = torch.float64, float("inf")
Make = Callable[[], tuple]


# Operands


nothing: Make = lambda: ()


def randn(*shape, dtype=D64, grad=True) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


def leaves(*shapes, dtype=torch.float32, grad=True) -> tuple[torch.Tensor, ...]:
    """One tensor of normal numbers for each shape."""
    return tuple(torch.randn(s, dtype=dtype).requires_grad_(grad) for s in shapes)


def normal(*shapes, dtype=D64, grad=True) -> Make:
    return lambda: leaves(*shapes, dtype=dtype, grad=grad)


def qkv32(dtype=torch.float32) -> tuple[torch.Tensor, ...]:
    return leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), dtype=dtype)


def integral(*shapes, low=-2, high=3, dtype=D64) -> Make:
    """Whole numbers, so that scores tie and meet the kinks."""
    return lambda: tuple(
        torch.randint(low, high, (s,) if isinstance(s, int) else s).to(dtype).requires_grad_()
        for s in shapes
    )


def qkv(b=2, h=2, n=5, m=7, d=4, dtype=D64) -> Make:
    """Query, key and value: `n` rows, `m` keys, and values of another width."""
    return normal((b, h, n, d), (b, h, m, d), (b, h, m, 3), dtype=dtype)


def ikv(b=2, h=2, n=5, m=7, d=4, dtype=D64) -> Make:
    """The same with whole numbers for query and key."""
    return plus(
        integral((b, h, n, d), (b, h, m, d), dtype=dtype), normal((b, h, m, 3), dtype=dtype)
    )


def square(b=2, h=2, n=6, d=4, dtype=D64, grad=True) -> Make:
    """Query, key and value of one shape."""
    return normal(*[(b, h, n, d)] * 3, dtype=dtype, grad=grad)


def rounded(dtype) -> Make:
    """Small ones of one shape, drawn in fp64 and rounded."""
    return lambda: tuple(x.to(dtype).requires_grad_() for x in frozen())


frozen, fp64 = square(n=5, grad=False), square(n=5)
fp32, bf16 = rounded(torch.float32), rounded(torch.bfloat16)


def values(data, dtype=None, grad=False) -> Make:
    return lambda: (torch.tensor(data, dtype=dtype, requires_grad=grad),)


def plus(*makers: Make) -> Make:
    """The operands of all of them."""
    return lambda: tuple(x for make in makers for x in make())


# Programs


def of_scores(f: Callable) -> Callable:
    """The program whose weights are `f` of the scores and of what follows the value."""
    return lambda q, k, v, *more: f(q @ k.mT, *more) @ v


def scored(f: Callable) -> Callable:
    """The program that is `f` of the scores, the value and what follows it."""
    return lambda q, k, v, *more: f(q @ k.mT, v, *more)


def weighted(act: Callable) -> Callable:
    """The same of the weights, which are `act` of the scores."""
    return lambda f: scored(lambda s, *more: f(act(s), *more))


def attended(act: Callable) -> Callable:
    """The same of the output, without the value."""
    return lambda f: scored(lambda s, v, *more: f(act(s) @ v, *more))


def after(change: Callable, weights: Callable) -> Callable:
    """Weights of scores that a call has changed; nobody reads what the call returns."""

    def changed(s, *more):
        change(s, *more)
        return weights(s, *more)

    return changed


def put(index, value) -> Callable:
    """`x[index] = value`, for `after`."""
    return lambda x, *more: operator.setitem(x, index, value)


class Programs(list):
    """Programs as the test of the hunts takes them: a function, or one and what the caller does
    before the backward, with its operands.
    """

    def add(self, name: str, function: Callable, make: Make, before: Callable | None = None):
        def program(*operands):
            return function(*operands)

        program.__name__ = name
        self.append(((program, before) if before else program, make))

    def table(
        self,
        make: Make,
        rows: dict | None = None,
        of: Callable | None = None,
        prefix: str = "",
        before: Callable | None = None,
        **more,
    ):
        """A row is a function or a tuple: the function and makers of its further operands.
        of: makes the program of what the rows hold. before: what the caller does before the
        backward. A program that breaks Dynamo's graph is a `case`: in a row it would break it at
        the call of the row's function.
        """
        for name, row in {**(rows or {}), **more}.items():
            function, *further = row if isinstance(row, tuple) else (row,)
            program = of(function) if of else function
            self.add(prefix + name, program, plus(make, *further), before)

    def case(self, make: Make, before: Callable | None = None, of: Callable | None = None):
        """Adds the function that it decorates, or the program that `of` makes of it."""

        def add(function):
            if of is not None:
                self.add(function.__name__, of(function), make, before)
            else:
                self.append(((function, before) if before else function, make))
            return function

        return add


def name_of(entry: Callable | tuple) -> str:
    """entry: the first item of a case."""
    function = entry[0] if isinstance(entry, tuple) else entry
    return getattr(function, "__name__", type(function).__name__)
