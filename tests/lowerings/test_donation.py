"""The memory that a gradient may take: that of copies which the forward keeps for one backward."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config

from gdpa_inductor import gdpa_backend
from gdpa_inductor._compat import lowering
from gdpa_inductor.lowerings import cpu, donation
from tests.kernels import render
from tests.kernels.cases import Case

from .operators import uncompiled, without_loops


@pytest.fixture
def spent() -> Iterator[list[list[bool]]]:
    """Of the query and the operands of the program, for each backward that is lowered."""
    results: list[list[bool]] = []

    def look(call):
        owners = call.signature.bind(*lowering.node_arguments()).operands
        results.append(lowering.spent([owners.query, *owners.aux]))

    with looking(look):
        yield results


@contextlib.contextmanager
def looking(look: Callable) -> Iterator[None]:
    """At each backward that is lowered; nothing is compiled."""
    backend = uncompiled(cpu.BACKEND)

    def lower(call):
        if call.backward:
            look(call)
        return backend.lower(call)

    looks = dataclasses.replace(backend, lower=lower)
    with without_loops(), mock.patch.object(cpu, "BACKEND", looks):
        yield


SHAPES = (*[(2, 4, 64, 32)] * 3, (4, 64, 64))


def backward_of(function: Callable, shapes: Sequence = SHAPES, *, retain: bool = False) -> None:
    torch._dynamo.reset()
    options = {"gdpa.profit": False, "gdpa.strict": True}
    backend = lambda gm, inputs: gdpa_backend(gm, inputs, options=options)
    arguments = [torch.randn(shape, requires_grad=True) for shape in shapes]
    with functorch_config.patch(donated_buffer=not retain):
        out = torch.compile(function, backend=backend)(*arguments)
        out = out[0] if isinstance(out, tuple) else out
        torch.autograd.grad(out.sum(), arguments, retain_graph=retain)


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


def projected(q: Tensor, x: Tensor, v: Tensor, weight: Tensor, again: bool) -> Tensor:
    key = (x @ weight).unflatten(-1, q.shape[1::2]).transpose(1, 2)
    out = F.silu(q @ key.mT * 0.1) @ v
    return out + key.square().mean() if again else out


def keys_spent(function: Callable, *shapes: tuple[int, ...]) -> list[bool]:
    """Of each backward: the memory of its key."""
    results: list[bool] = []
    off = inductor_config.patch(fx_graph_cache=False)
    with (
        off,
        looking(lambda call: results.extend(lowering.spent([call.fx_operands.key], views=True))),
    ):
        backward_of(function, shapes)
    return results


@pytest.mark.parametrize("again", [False, True], ids=["", "and the loss"])
def test_a_view_of_what_is_saved_is_spent_if_nothing_else_reads_it(again):
    shapes = ((2, 4, 64, 32), (2, 64, 16), (2, 4, 64, 32), (16, 128))
    assert keys_spent(functools.partial(projected, again=again), *shapes) == [not again]


@pytest.mark.parametrize("first", [2, 8], ids=["overlaps", "apart"])
def test_keys_that_share_memory_with_values_are_not_spent(first):
    """Both are saved as slices, and no other reads them. Their gradient would lie in the values,
    which other tiles have yet to read."""

    def sliced(q: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        heads = (x @ weight).view(16, 512, 32)
        key, value = heads[0:4].unsqueeze(0), heads[first : first + 4].unsqueeze(0)
        return F.silu(q @ key.mT * 0.1) @ value

    assert keys_spent(sliced, (1, 4, 48, 32), (16 * 512, 64), (64, 32)) == [False]


ADDED = "a0:f[{},kv_idx]; silu(add(s,a0))"
FEW = Case("few", "silu(s)", m=48, n=512, d=64, dv=64, half=True, options="kernel=triton")


@pytest.mark.parametrize(
    ("program", "donates"),
    [("silu(s)", True), (ADDED.format("h"), True), (ADDED.format("q_idx"), False)],
    ids=["few rows", "sums of columns", "bias after"],
)
def test_the_gradient_of_keys_that_are_read_once_takes_their_memory(program, donates):
    """Not where another kernel reads them later."""
    case = dataclasses.replace(FEW, spent=True, program=program, needs="qkv0")
    tensors = [x.half() for x in case.tensors()]
    result = render.wrapper(case.function(), tensors)
    code = render.wrapper(case.function(), tensors, donated=[2])
    assert "buffer_site" not in result and ("donation_buffer_site()" in code) == donates
    assert code.count("empty_strided_cuda(") == result.count("empty_strided_cuda(") - donates


def test_room_is_taken_only_where_the_backward_runs_once(monkeypatch):
    key = torch.randn(2, 2, 8, 4).transpose(1, 2)
    room = donation.buffer_site()
    for spends in (False, True):
        monkeypatch.setattr(donation, "last_use", lambda spends=spends: spends)
        result = room(key)
        assert (result.data_ptr() == key.data_ptr()) == spends and result.stride() == key.stride()
    odd = torch.randn(2, 2, 8, 5)[:, :, :, 1:]
    assert room(odd).data_ptr() != odd.data_ptr()
