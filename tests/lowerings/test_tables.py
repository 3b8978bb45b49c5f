"""Compiled gradients of learned tables, on a CPU."""

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor import look_up
from gdpa_inductor.lowerings import cpu, tables
from gdpa_inductor.patterns import profit
from tests.operands import generator_of

from .operators import uncompiled

B, H, N, D, T = 2, 2, 48, 16, 5
OPTIONS = {"gdpa.profit": False, "gdpa.expect": 1}


@pytest.fixture(autouse=True)
def without_kernels_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """And biases are stored, which programs would look up."""
    monkeypatch.setattr(cpu, "BACKEND", uncompiled(cpu.BACKEND))
    monkeypatch.setattr(profit, "rather_stored", lambda *_: "for a test")


def operands(n: int = N) -> list[torch.Tensor]:
    generator = generator_of(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator)
    leaves = [*(draw(B, H, n, D).bfloat16() for _ in range(3)), draw(T, H)]
    places = torch.randint(-T, T, (B, n, n), generator=generator)
    return [*(x.requires_grad_() for x in leaves), places]


def attention(form):
    def function(q, k, v, table, places):
        return F.silu(q @ k.mT + form(table, places)).to(v.dtype) @ v

    return function


def gradient(function, inputs):
    output = function(*inputs)
    direction = torch.randn(output.shape, generator=generator_of(1)).to(output.dtype)
    return torch.autograd.grad(output, inputs[3], direction)[0]


def exact(form, inputs):
    wide = [x.detach().double().requires_grad_() for x in inputs[:4]]
    return gradient(attention(form), [*wide, inputs[4]])


def each_sample(table, places):
    """A bias in 16 bits, as under autocast. The table's gradient is in fp32."""
    return table[:, 0].contiguous()[places][:, None].bfloat16()


def a_head_each(table, places):
    return F.embedding(places[0] % T, table).permute(2, 0, 1)


def two_indices(table, places):
    return table[places % T, places % H][:, None].bfloat16()


def scaled(table, places):
    """The gradient of what is looked up is no cast of a buffer."""
    return table[:, 0].contiguous()[places][:, None].bfloat16().float() * 0.7


@pytest.mark.parametrize(
    ("form", "terms"),
    [
        (each_sample, torch.bfloat16), (a_head_each, torch.float32),
        (two_indices, torch.bfloat16), (scaled, torch.float32),
    ],
)  # fmt: skip
def test_what_the_kernel_is_given(form, terms, monkeypatch):
    """Gradients in 16 bits as they lie in memory, if they do. Else in fp32."""
    requests = []

    def sums(grad, index, size):
        assert grad.is_contiguous() and index.is_contiguous()
        requests.append((grad.dtype, index.dtype, tuple(grad.shape), index.numel(), size))
        return torch.ops.gdpa.table_sums(grad, index, size)

    monkeypatch.setattr(tables, "_has_kernel", lambda *_: True)
    monkeypatch.setattr(tables.tables, "precompile_sums", lambda *_: None)
    monkeypatch.setattr(tables, "kernel", lambda: sums)
    inputs = operands()
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        result = gradient(torch.compile(attention(form), backend="gdpa", options=OPTIONS), inputs)
    rows = N * N if form is a_head_each else B * N * N
    columns, size = (H, T) if form is a_head_each else (1, T * H if form is two_indices else T)
    ((dtype, _, *sizes),) = requests
    assert (dtype, *sizes) == (terms, (columns, rows), rows, size)
    wanted = exact(form, inputs)
    assert (result.double() - wanted).norm() <= 1e-2 * wanted.norm()


@pytest.mark.parametrize("form", [each_sample, a_head_each, two_indices])
def test_what_is_generated(form):
    """Neighbours add to different copies. One graph serves all lengths."""
    compiled = torch.compile(attention(form), backend="gdpa", options=OPTIONS, dynamic=True)
    torch._dynamo.reset()
    for n in (N, N + 3):
        inputs = operands(n)
        result = gradient(compiled, inputs)
        wanted = exact(form, inputs)
        assert (result.double() - wanted).norm() <= 1e-2 * wanted.norm()


def test_a_table_of_a_size_that_varies():
    """Two look-ups: by one index, and by two."""

    def function(q, k, v, table):
        n = q.shape[-2]
        apart = (torch.arange(n)[:, None] - torch.arange(n)).abs()
        near, pairs = table[: n // 8], table[: n // 8, None].expand(-1, 2)
        bias = near[apart.clamp(max=4)] + pairs[apart.clamp(max=3), apart % 2]
        return F.silu(q @ k.mT + bias) @ v

    compiled = torch.compile(function, backend="gdpa", options=OPTIONS, dynamic=True)
    torch._dynamo.reset()
    table = torch.randn(10, dtype=torch.float64, requires_grad=True)
    for n in (64, 72):
        arguments = [*(torch.randn(B, H, n, 8, dtype=torch.float64) for _ in range(3)), table]
        torch.testing.assert_close(gradient(compiled, arguments), gradient(function, arguments))


def test_small_tables_get_copies():
    assert look_up.copies(129, 1 << 24) == 2048
    assert look_up.copies(4095, 1 << 24) == 256
    assert look_up.copies(129, 1 << 12) == 1


def test_gradients_of_gradients():
    table = torch.randn(T, H, dtype=torch.float64, requires_grad=True)
    places = torch.randint(-T, T, (4, 3))
    for dim, one in ((0, table), (1, table.mT)):
        look = lambda t, dim=dim: torch.ops.gdpa.look_up(t, places, dim).sin()
        assert torch.autograd.gradcheck(look, one) and torch.autograd.gradgradcheck(look, one)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_operators(dtype):
    table = torch.randn(3, T, 2).to(dtype).requires_grad_()
    places = torch.randint(-T, T, (4, 6), dtype=torch.int32)
    torch.library.opcheck(torch.ops.gdpa.look_up.default, (table, places, 1))
    grad = torch.randn(3, 4, 6, 2).to(dtype).requires_grad_()
    torch.library.opcheck(torch.ops.gdpa.look_up_backward.default, (grad, places, 1, T))
    torch.library.opcheck(
        torch.ops.gdpa.table_sums.default, (torch.ones(2, 24), places.view(-1), T)
    )
