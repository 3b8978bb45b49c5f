"""The blocked operators, of a CPU and in chunks, beside the reference; blocks for small sizes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._inductor import async_compile
from torch._inductor.codecache import PyCodeCache

from gdpa_inductor import lowerings
from gdpa_inductor.kernels.blocked import chunks, loop, tiling
from gdpa_inductor.lowerings.backends import Backend
from gdpa_inductor.lowerings.call import extern_call
from gdpa_inductor.program.score_mod import ScoreMod
from tests._judge import Results, difference, results

lowerings.register()


def canonical(text: str) -> str:
    return str(ScoreMod.parse(text))


def uncompiled(backend: Backend, **changes: Any) -> Backend:
    """The backend, with calls of the public operators in place of its kernels: nothing of them is
    compiled."""

    def lower(call):
        return extern_call(call.signature, call.nodes)

    return replace(backend, **{"lower": lower, **changes})


@contextmanager
def without_loops() -> Iterator[None]:
    """Inductor's own loops for a CPU are not compiled, and do nothing: nobody looks at numbers."""
    nothing = lambda *_, **__: lambda *_: None
    with mock.patch.object(async_compile.AsyncCompile, "cpp_pybinding", nothing):
        yield
    PyCodeCache.cache_clear()  # the same code elsewhere has loops


class Differentiable(torch.autograd.Function):
    """The two operators as one function."""

    @staticmethod
    def forward(ctx, operators, options, text, scalars, query, key, value, *aux):
        ctx.save_for_backward(query, key, value, *aux)
        ctx.operators, ctx.options, ctx.rest = operators, options, (scalars, text)
        return operators.forward(query, key, value, list(aux), scalars, text, **options)

    @staticmethod
    def backward(ctx, grad_out):
        query, key, value, *aux = ctx.saved_tensors
        needs = list(ctx.needs_input_grad[4:])
        operands = (query, key, value, aux, *ctx.rest, needs)
        result = iter(ctx.operators.backward(grad_out, *operands, **ctx.options))
        return *[None] * 4, *(next(result) if need else None for need in needs)


@dataclass(frozen=True)
class Operators:
    forward: Callable[..., Any]
    backward: Callable[..., Any]

    def apply(self, text: str, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """With gradients, without aux operands."""
        return Differentiable.apply(self, options, text, [], query, key, value)

    def same_as_reference(
        self,
        text: str,
        *,
        sizes: tuple[int, int, int, int] = (2, 4, 37, 53),
        heads: tuple[int, int] = (4, 4),
        batches: tuple[int, int, int] | None = None,
        aux: Sequence[Tensor] = (),
        scalars: Sequence[int] = (),
        rearrange: Callable[[Tensor], Tensor] = lambda t: t,
        needs: Sequence[bool] | None = None,
        dtypes: tuple[torch.dtype, torch.dtype] = (torch.float64, torch.float64),
        rtol: float = 1e-11,
        atol: float = 1e-10,
    ) -> None:
        """Output and every gradient against the reference; all contiguous."""
        batch, query_heads, rows, cols = sizes
        query_batch, key_batch, value_batch = batches or (batch,) * 3
        dtype, value_dtype = dtypes
        query = rearrange(torch.randn(query_batch, query_heads, rows, 12, dtype=dtype))
        key = rearrange(torch.randn(key_batch, heads[0], cols, 12, dtype=dtype))
        value = rearrange(torch.randn(value_batch, heads[1], cols, 20, dtype=value_dtype))
        grad_out = rearrange(torch.randn(batch, query_heads, rows, 20, dtype=value_dtype))
        operands = (query, key, value, list(aux), list(scalars), canonical(text))
        requests = list(needs or [True] * 3 + [t.is_floating_point() for t in aux])
        mine = [self.forward(*operands), *self.backward(grad_out, *operands, requests)]
        theirs = [torch.ops.gdpa.attention(*operands, "")]
        theirs += torch.ops.gdpa.attention_backward(grad_out, *operands, requests, "")
        for got, expected in zip(mine, theirs, strict=True):
            assert got.is_contiguous()
            torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)

    def breach(
        self, text: str, eager: Callable[..., Tensor], given: Sequence[Tensor], **options: Any
    ) -> str:
        """How outputs or gradients of query, key and value break the error rule, or ""."""

        def run(function: Callable[..., Tensor], dtype: torch.dtype) -> Results:
            leaves = [t.to(dtype).requires_grad_() for t in given]
            return results(function, dict(zip(("query", "key", "value"), leaves, strict=True)))

        def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return self.apply(text, query, key, value, **options)

        dtype = given[0].dtype
        return difference(run(fused, dtype), run(eager, dtype), run(eager, torch.float64))


CPU = Operators(torch.ops.gdpa.attention_cpu.default, torch.ops.gdpa.attention_cpu_backward.default)
CHUNKED = Operators(
    torch.ops.gdpa.attention_chunked.default, torch.ops.gdpa.attention_chunked_backward.default
)


def as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are not compiled: each for every form takes minutes."""
    monkeypatch.setattr(loop, "compiled", lambda work, *_, **__: work)


def in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16 rows and columns and at most two heads, so that small sizes have many blocks."""
    sizes = {"FEW": 0, "EDGE": 16, "SCORES": 16 * 16, "MAX_THREADS": 2}
    for name, value in sizes.items():
        monkeypatch.setattr(tiling, name, value)


# By name: bytes of scores of a chunk, bytes of sums, and the rows for which all columns are taken.
# The problems have 37 rows and 53 columns. fp64 takes 8 bytes forward, 16 backward.
FORMS = {
    "one chunk": (32 << 20, 28 << 20, 1024),
    "some units": (16 * 37 * 53 * 3, 28 << 20, 1024),
    "rows of a unit": (16 * 11 * 53, 28 << 20, 4),
    "squares": (16 * 20 * 20, 28 << 20, 1024),
    "a pass for each": (16 * 20 * 20, 1, 1024),
}


@contextmanager
def in_chunks(form: str, patch: pytest.MonkeyPatch) -> Iterator[None]:
    scores, sums, rows = FORMS[form]
    sizes = {"SCORES": scores, "SUMS": sums, "MIN_ROWS": rows, "ALIGNED": 4}
    sizes |= {"STORED": scores, "STORED_SUMS": sums}
    for name, value in sizes.items():
        patch.setattr(chunks, name, value)
    chunks.passes.cache_clear()
    yield
    chunks.passes.cache_clear()


def in_form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operators]:
    """Of a CPU, compiled, in small blocks; or in chunks of a form."""
    if request.param == "blocks":
        in_small_blocks(monkeypatch)
        yield CPU
    else:
        as_they_are(monkeypatch)
        with in_chunks(request.param, monkeypatch):
            yield CHUNKED
