"""On a GPU: the backward of few rows in one kernel, and operands that lie in other orders."""

from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch._inductor.utils import run_and_get_code

from benchmarks.measure import peak_extra_bytes
from gdpa_inductor.lowerings import donation

from .checks import check_bits, compiled
from .programs import CASES, LAYOUTS, Case
from .test_kernels import bits, breach, operands_of

pytestmark = pytest.mark.cuda
IN_ONE_TILE = "dq = tl.dot(tl.trans(ds), k"


def _plain(q, k, v):
    return F.gelu(q @ k.mT * 0.1) @ v


def _columns(q, k, v, bias):
    return F.silu(q @ k.mT * 0.1 + bias) @ v


def few(function, m: int, n: int, d: int, *, q: str = "b h m d", b: int = 2, **more: str) -> Case:
    specs = {"q": q, "k": "b h n d", "v": "b h n e", **more}
    return Case(function, specs, {"b": b, "m": m, "n": n, "d": d, "e": d})


FEW = {
    "wide heads": few(_plain, 48, 1024, 128),
    "narrow heads": few(_plain, 96, 1000, 64),
    "a row": few(_plain, 1, 777, 128),
    "odd sizes": few(_plain, 61, 301, 40),
    "shares of the keys": few(_plain, 48, 8192, 128, b=1),
    "shared queries": few(_plain, 32, 1000, 64, q="h m d"),
    "a bias of columns": few(_columns, 48, 1024, 64, bias="b h 1 n"),
    "its shares": few(_columns, 48, 8000, 64, b=1, bias="h 1 n"),
    "a bias of all": few(_columns, 20, 1024, 64, bias="b h m n"),
    "padding": few(CASES["mask"].function, 48, 1024, 64, mask="blocks: b 1 1 n"),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", FEW)
def test_error_rule(name: str, dtype: torch.dtype) -> None:
    case = FEW[name]
    fault, codes = run_and_get_code(lambda: breach(case, compiled(case.function), dtype))
    assert not fault
    assert any(IN_ONE_TILE in code for code in codes)


@pytest.mark.parametrize("name", ["wide heads", "shares of the keys", "its shares"])
def test_equal_bits(name: str) -> None:
    case = FEW[name]
    operands, function = operands_of(case, torch.bfloat16), compiled(case.function)
    check_bits(lambda: bits(function, operands), 200)


@pytest.mark.parametrize("name", LAYOUTS)
def test_error_rule_of_layouts(name: str) -> None:
    """A gradient lies in memory as its operand does."""
    case = replace(LAYOUTS[name], sizes={"m": 48, "n": 520})
    assert not breach(case, compiled(case.function), torch.bfloat16)


def _projected(q, x, v, weight):
    key = (x @ weight).unflatten(-1, q.shape[1::2]).transpose(1, 2)
    return F.gelu(q @ key.mT * 0.1) @ v


def test_the_gradient_of_the_keys_in_their_memory() -> None:
    """It has the same bits as where the backward may run again, and takes less memory."""
    batch, heads, m, n, d = 8, 4, 48, 2048, 128
    sizes = ((batch, heads, m, d), (batch, n, 64), (batch, heads, n, d), (64, heads * d))
    tensors = [torch.randn(x, device="cuda", dtype=torch.bfloat16) for x in sizes]
    tensors = [x.mul_(x.shape[-1] ** -0.5).requires_grad_() for x in tensors]
    function, direction = compiled(_projected), torch.randn_like(tensors[0])

    def step() -> list[torch.Tensor]:
        return list(torch.autograd.grad(function(*tensors), tensors, direction))

    taken, codes = run_and_get_code(step)
    assert any("donation_buffer_site()" in code for code in codes)
    peaks, results = [], []
    for spends in (True, False):
        with mock.patch.object(donation, "last_use", lambda spends=spends: spends):
            results.append(step())
            peaks.append(peak_extra_bytes(step, "cuda"))
    for others in results:
        assert all(torch.equal(a, b) for a, b in zip(taken, others, strict=True))
    assert peaks[1] - peaks[0] >= batch * heads * n * d  # half of the bytes, at least
