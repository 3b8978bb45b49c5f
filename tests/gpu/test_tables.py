"""On a GPU: gradients of learned tables, summed by the kernel and by additions to copies."""

import pytest
import torch
import torch.nn.functional as F
from torch._inductor.utils import run_and_get_code

from gdpa_inductor import gdpa_backend
from gdpa_inductor.kernels.cute import tables
from tests.tolerances import error_of

pytestmark = pytest.mark.cuda
B, H, N, D, T = 3, 2, 200, 64, 129
KERNEL = "lowerings_tables_kernel"


def each_sample(table, index):
    return table[index][:, None]


def selected(table, index):
    return table.index_select(0, index.view(-1)).view(index.shape)[:, None]


def a_head_each(table, index):
    return F.embedding(index[0], table[:, None].expand(-1, H)).permute(2, 0, 1)


def heads_first(table, index):
    return table[None].expand(H, -1)[:, index[0]]


def gathered(table, index):
    return table.gather(0, index[0].view(-1)).view(N, N)


def made_again(table, index):
    at = index[:, 0].cumsum(-1)
    return table[(at[:, :, None] - at[:, None]).abs() // 300 % T][:, None]


def two_indices(table, index):
    return table.view(43, 3)[index // 3, index % 3][:, None]


@pytest.fixture(autouse=True)
def _in_order():
    """So the kernel serves tables that few elements are looked up in."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


FORMS = [each_sample, selected, a_head_each, heads_first, gathered, made_again, two_indices]


def operands(dtype: torch.dtype, size: int = T) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, device="cuda", generator=generator)
    tensors = [draw(B, H, N, D).to(dtype) for _ in range(3)] + [draw(size)]
    index = torch.randint(size, (B, N, N), device="cuda", generator=generator)
    return [*(x.requires_grad_() for x in tensors), index]


def attention(form):
    def function(query, key, value, table, index):
        scores = query @ key.mT * 0.125 + form(table, index)
        return F.silu(scores).to(value.dtype) @ value

    return function


def gradient(function, tensors):
    output = function(*tensors)
    direction = torch.randn(
        output.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1)
    ).to(output.dtype)
    return torch.autograd.grad(output, tensors[3], direction)[0]


def breach(mine, function, tensors):
    """How a gradient breaks the error rule, or None."""
    wide = [x.detach().double().requires_grad_() for x in tensors[:4]]
    exact = gradient(function, [*wide, tensors[4]])
    return error_of(mine, gradient(function, tensors), exact, direction="backward")


def compiled(function):
    torch._dynamo.reset()
    options = {"gdpa.expect": 1, "gdpa.profit": False}
    return torch.compile(function, backend=gdpa_backend, options=options, dynamic=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_gradient(form, dtype):
    pytest.importorskip("cutlass")
    tensors, function = operands(dtype), attention(form)
    mine, codes = run_and_get_code(lambda: gradient(compiled(function), tensors))
    assert any(KERNEL in code for code in codes)
    fault = breach(mine, function, tensors)
    assert not fault, fault
    again = gradient(compiled(function), tensors)
    assert torch.equal(mine, again)


@pytest.mark.parametrize("size", [1, 452, tables.MOST])
@pytest.mark.parametrize("rows", [3, 100_000, 1_000_003])
def test_sizes(size, rows):
    pytest.importorskip("cutlass")
    terms = torch.randint(-8, 9, (2, rows), device="cuda").bfloat16()
    places = torch.randint(-size, size, (rows,), device="cuda")
    results = tables.sums(terms, places, size)
    exact = torch.zeros(2, size, device="cuda", dtype=torch.float64)
    exact.index_add_(1, places % size, terms.double())
    assert torch.equal(results.double(), exact)


@pytest.mark.parametrize("size, in_order", [(tables.MOST + 1, True), (T, False)])
def test_large_tables_and_few_terms_are_left_to_generated_code(size, in_order):
    torch.use_deterministic_algorithms(in_order, warn_only=True)
    tensors, function = operands(torch.bfloat16, size), attention(each_sample)
    mine, codes = run_and_get_code(lambda: gradient(compiled(function), tensors))
    assert not any(KERNEL in code for code in codes)
    fault = breach(mine, function, tensors)
    assert not fault, fault


def test_rows_beyond_32_bits_of_bytes():
    pytest.importorskip("cutlass")
    rows, last = (1 << 29) + 12345, 12345
    grad = torch.zeros(1, rows, device="cuda", dtype=torch.bfloat16)
    grad[:, -last:] = 1
    index = torch.arange(rows, device="cuda", dtype=torch.int32).remainder_(7)
    results = tables.sums(grad, index, 7)
    assert torch.equal(results[0].long(), torch.bincount(index[-last:], minlength=7))
