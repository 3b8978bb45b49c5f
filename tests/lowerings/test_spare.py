"""The memory that a gradient may take: that of copies which the forward keeps for one backward."""

from collections.abc import Callable, Iterator
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gdpa_inductor import gdpa_backend
from gdpa_inductor._compat import autograd, lowering
from gdpa_inductor.lowerings import cpu


@pytest.fixture
def spent() -> Iterator[list[list[bool]]]:
    """Of the query and the operands of the program, for each backward that is lowered."""
    found: list[list[bool]] = []
    lower = cpu.BACKEND.lower_backward

    def looking(call):
        held = call.signature.bind(*lowering.node_arguments()).operands
        found.append(lowering.spent([held.query, *held.aux]))
        return lower(call)

    with mock.patch.dict(cpu.BACKEND.__dict__, lower_backward=looking):
        yield found


def backward_of(function: Callable, *, retain: bool = False) -> None:
    torch._dynamo.reset()
    options = {"gdpa.profit": False, "gdpa.strict": True}
    backend = lambda gm, inputs: gdpa_backend(gm, inputs, options=options)
    shapes = (*[(2, 4, 64, 32)] * 3, (4, 64, 64))
    given = [torch.randn(shape, requires_grad=True) for shape in shapes]
    with autograd.keep_saved_buffers(retain):
        out = torch.compile(function, backend=backend)(*given)
        out = out[0] if isinstance(out, tuple) else out
        torch.autograd.grad(out.sum(), given, retain_graph=retain)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.silu(q @ k.mT * 0.1 + bias) @ v


def twice(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return attend(attend(q, k, v, bias), k, v, bias)


def with_a_copy_outside(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    doubled = bias * 2.0
    return attend(q, k, v, doubled), doubled


def inside(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return attend(q, k, v, bias * 2.0) * 1.5


def test_a_copy_of_a_parameter_is_spent(spent):
    """The query is the caller's."""
    backward_of(attend)
    assert spent == [[False, True]]


def test_what_may_be_read_again_is_not(spent):
    backward_of(attend, retain=True)
    assert spent == [[False, False]]


def test_a_copy_that_two_backwards_read_is_not(spent):
    """Each region has its own, unless Inductor makes one of them."""
    backward_of(twice)
    assert [aux for _, aux in spent] in ([True, True], [False, False])


@pytest.mark.parametrize("function", [with_a_copy_outside, inside])
def test_the_memory_of_others_is_never_spent(function, spent):
    """What the caller sees is copied before; what is computed again has no reader before."""
    backward_of(function)
    assert [query for query, _ in spent] == [False]


def test_a_backward_knows_whether_it_runs_once():
    found = []

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, grad):
            found.append(autograd.backward_runs_once())
            return grad

    assert not autograd.backward_runs_once()
    x = torch.ones(2, requires_grad=True)
    y = Looks.apply(x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert found == [False, True]
