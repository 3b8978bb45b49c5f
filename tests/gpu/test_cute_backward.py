"""The Hopper backward kernel, on the card, against the formula in fp64."""

import contextlib
import dataclasses
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("cutlass")
pytestmark = pytest.mark.cuda

from gdpa_inductor.kernels.cute.backward.launch import backward  # noqa: E402
from gdpa_inductor.kernels.cute.launch import forward  # noqa: E402
from gdpa_inductor.operands import Operands  # noqa: E402
from gdpa_inductor.program.score_mod import ScoreMod  # noqa: E402
from tests.gpu.checks import captured, check_bits, check_gradients, hopper, on_card  # noqa: E402, F401
from tests.kernels.cute_backward_cases import (  # noqa: E402
    CASES,
    CAUSAL,
    SILU,
    Case,
    Problem,
    check_errors,
    check_integers,
    check_neighbours,
    make_call,
)

WIDE = (128, 128)
MIXED = {"rows": (200, 0, 130, 1, 300), "keys": (200, 0, 130, 1, 300)}
LENGTHS = {"rows": (900, 33, 700, 0, 1, 512), "keys": (900, 33, 700, 0, 1, 512)}
LONG = {
    "many tiles": Case(batch=2, heads=4, key_heads=4, rows=1100, keys=1300, dims=WIDE),
    "many tiles, causal": Case(CAUSAL, 2, 4, 2, rows=1300, keys=1300, dims=WIDE),
    "many tiles, grouped heads": Case(SILU, 3, 8, 2, rows=700, keys=900, dims=(128, 96)),
    "many tiles, jagged": Case(heads=4, key_heads=4, **LENGTHS, dims=WIDE),
    "many tiles, jagged, causal": Case(CAUSAL, heads=4, key_heads=4, **LENGTHS, dims=WIDE),
    "many tiles, head dim 64": Case(SILU, 2, 4, 4, rows=1100, keys=1300),
    "seeds, many tiles": Case(
        heads=4, key_heads=4, rows=32, keys=LENGTHS["keys"], shared="q", dims=WIDE
    ),
}
ALL = {
    **CASES,
    **{
        f"{name}, wide": dataclasses.replace(case, dims=(128, max(128, case.dims[1])))
        for name, case in CASES.items()
        if case.dims[0] <= 64
    },
    "jagged, head dim 96": Case(dims=(96, 96), **MIXED),
    "jagged, head dim 32": Case(dims=(32, 32), **MIXED),
    "jagged queries, two tiles of dense keys": Case(rows=MIXED["rows"], keys=256),
    "jagged queries, two tiles of dense keys, wide": Case(rows=MIXED["rows"], keys=256, dims=WIDE),
    "shared keys alone": Case(batch=3, rows=100, keys=140, shared="k", dims=WIDE),
    "shared values alone": Case(batch=3, rows=100, keys=140, shared="v", dims=WIDE),
    "value dim 32": Case(batch=2, rows=200, keys=300, dims=(128, 32)),
    "two rounds": Case(SILU, 10, 4, 4, rows=300, keys=500, dims=WIDE),
    "jagged, head dims 40 and 64": Case(dims=(40, 64), **MIXED),
    "jagged, head dims 72 and 128": Case(heads=4, dims=(72, 128), **MIXED),
    "dense queries, some without keys": Case(rows=100, keys=MIXED["keys"], dims=WIDE),
    **LONG,
}


def gradients(case: Case, call: Problem, ctas: int = 0, ordered: bool = True) -> list[torch.Tensor]:
    """dQ, dK and dV on the CPU."""
    o = call.operands
    there = on_card(o)
    with poisoned():
        options = {"fast": case.fast, "ctas": ctas, "ordered": ordered}
        results = backward(call.grad_out.cuda(), there, (True,) * 3, **options)
    return [x.cpu() for x in results]


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Memory that is not written is NaN, also that of `_compat.device.empty`."""
    guards = torch._C._dynamo.guards
    plain = guards._empty_strided_cuda

    def filled(*arguments: object) -> torch.Tensor:
        made = plain(*arguments)
        return made.fill_(float("nan") if made.is_floating_point() else 1 << 20)

    torch.use_deterministic_algorithms(True)
    guards._empty_strided_cuda = filled
    try:
        yield
    finally:
        guards._empty_strided_cuda = plain
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ALL)
def test_gradients(name: str) -> None:
    """By as many CTAs as there are multiprocessors, and by few, that take many tiles each."""
    case = ALL[name]
    call = make_call(case)
    for ctas in (0, case.ctas):
        check_errors(gradients(case, call, ctas), case, call)


@pytest.mark.parametrize("name", LONG)
def test_the_same_bits_each_time(name: str) -> None:
    """The order of additions is that of the keys."""
    case = LONG[name]
    call = make_call(case)
    check_bits(lambda: gradients(case, call))


def test_the_sums_are_complete_when_they_are_converted() -> None:
    """On a full card, where additions take long. What is read too early is NaN."""
    grad, o = call_on_card((16, 4, 2048, 128), 2048)
    first = backward(grad, o, (True,) * 3)
    assert all(x.isfinite().all() for x in first)
    for _ in range(20):
        poison = torch.full((1 << 28,), float("nan"), device="cuda")
        del poison
        assert all(map(torch.equal, backward(grad, o, (True,) * 3), first))


def test_infinity_stays_outside_a_mask() -> None:
    """The gradient of a score that the mask leaves out is zero, whatever flows back to it."""
    grad, o = call_on_card((1, 1, 128, 128), 128)
    o.value[..., 100, :] = torch.inf
    causal = dataclasses.replace(o, program=ScoreMod.parse(CAUSAL))
    (grad_query,) = backward(grad, causal, (True, False, False))
    assert grad_query[..., :100, :].isfinite().all()


@pytest.mark.parametrize("dim", [8, 32, 40, 64, 72, 96, 128])
def test_exact_on_integers(dim: int) -> None:
    check_integers(gradients, (dim, 64))


@pytest.mark.parametrize("dims", [(64, 64), WIDE])
def test_neighbours_do_not_leak(dims: tuple[int, int]) -> None:
    check_neighbours(gradients, dims=dims)


def test_rows_of_no_sequence_are_zero() -> None:
    """Before the first sequence, behind the last, past the most rows of one. The last sequence owns
    nothing, and the second has no keys."""
    call = make_call(Case(rows=(2000,), keys=(2000,), dims=WIDE))
    cu = torch.tensor([37, 100, 400, 450, 1000, 900], dtype=torch.int32)
    cu_k = torch.tensor([11, 100, 100, 200, 1500, 1400], dtype=torch.int32)
    o = dataclasses.replace(call.operands, cu_seqlens_q=cu, cu_seqlens_k=cu_k)
    o = dataclasses.replace(o, max_seqlen_q=200, max_seqlen_k=300)
    there = on_card(o)
    with poisoned():
        results = backward(call.grad_out.cuda(), there, (True,) * 3)
    queries, keys = ((37, 100), (400, 450), (450, 650)), ((11, 100), (100, 200), (200, 500))
    for grad, ranges in zip(results, (queries, keys, keys), strict=True):
        owned = torch.zeros(len(grad), dtype=torch.bool)
        for first, end in ranges:
            owned[first:end] = True
        assert not grad.cpu()[~owned].any()
        assert grad.cpu()[owned].isfinite().all()


@pytest.mark.parametrize("past", [0, 700, 5000])
def test_offsets_past_the_rows_and_lying_apart(past: int) -> None:
    """The last sequence ends with the rows, and so does one that would begin behind them. Offsets
    are every other element of a tensor."""
    call = make_call(Case(rows=(300, 90, 200), keys=(300, 90, 200), dims=WIDE))
    cu = call.operands.cu_seqlens_q
    assert cu is not None
    end = torch.tensor([[0], [0], [0], [past]], dtype=cu.dtype)
    apart = torch.stack([cu, cu], 1).add(end)[:, 0]
    assert not apart.is_contiguous()
    # Rows that no sequence owned: now they are of the last one, as far as they go.
    rows = int(cu[-1]) + (9 if past else 0)
    for tensor in call.matrices:
        tensor.nan_to_num_(nan=1.0)
    o, grad = call.operands, call.grad_out
    exact_cu = cu.clone()
    exact_cu[-1] = rows
    wanted = dataclasses.replace(
        o, cu_seqlens_q=exact_cu, cu_seqlens_k=exact_cu, max_seqlen_q=400, max_seqlen_k=400
    )
    spread = dataclasses.replace(wanted, cu_seqlens_q=apart, cu_seqlens_k=apart)
    results = []
    for operands in (wanted, spread):
        there = on_card(operands)
        if operands is spread:
            strided = torch.stack([apart, apart], 1).cuda()[:, 0]
            there = dataclasses.replace(there, cu_seqlens_q=strided, cu_seqlens_k=strided)
        with poisoned():
            results.append([forward(there), *backward(grad.cuda(), there, (True,) * 3)])
    assert all(map(torch.equal, *results))
    assert all(x.isfinite().all() for x in results[0])


def call_on_card(
    shape: tuple[int, ...], keys: int, seed: int = 0
) -> tuple[torch.Tensor, Operands[torch.Tensor]]:
    torch.manual_seed(seed)
    batch, heads, rows, width = shape
    sizes = (rows, keys, keys, rows)
    q, k, v, grad = (torch.randn(batch, heads, n, width, device="cuda").bfloat16() for n in sizes)
    return grad, Operands(q, k, v, [], (), ScoreMod.parse("silu(mul(s,0.088))"), None, None, 0, 0)


def test_more_key_tiles_than_multiprocessors() -> None:
    """They do not run at once, so the lower keys wait for the higher ones."""
    tiles = torch.cuda.get_device_properties(0).multi_processor_count + 5
    grad, o = call_on_card((1, 2, 200, 128), 128 * tiles)
    results = backward(grad, o, (True,) * 3)

    def plain(dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in (o.query, o.key, o.value)]
        q, k, v = leaves
        out = torch.nn.functional.silu(q @ k.mT * 0.088) @ v
        return list(torch.autograd.grad(out, leaves, grad.to(dtype)))

    check_gradients(results, plain(torch.bfloat16), plain(torch.float64))


def test_two_at_once_on_two_streams() -> None:
    """Each waits in turns of its own; neither keeps the other's tiles from running."""
    tensors = [call_on_card((4, 4, 1024, 128), 1024, seed) for seed in range(2)]
    alone = [backward(*each, (True,) * 3) for each in tensors]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in tensors]
    results: list[list[torch.Tensor]] = []
    for _ in range(10):
        for stream, (grad, o) in zip(streams, tensors, strict=True):
            with torch.cuda.stream(stream):
                results.append(backward(grad, o, (True,) * 3))
    torch.cuda.synchronize()
    for i, each in enumerate(results):
        assert all(map(torch.equal, each, alone[i % 2]))


def test_in_a_cuda_graph() -> None:
    grad, o = call_on_card((1, 2, 300, 128), 300)
    expected = backward(grad, o, (True,) * 3)
    graph, results = captured(lambda: backward(grad, o, (True,) * 3))
    for x in results:
        x.fill_(float("nan"))
    graph.replay()
    assert all(map(torch.equal, results, expected))
