"""The CPU lowering: right, in blocks of any size, in little memory, and reached from
torch.compile."""

import math
import re
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from gdpa_inductor import lowerings
from gdpa_inductor._compat import dynamo, inductor
from gdpa_inductor.kernels.blocked import block_pass as cpu_pass
from gdpa_inductor.kernels.blocked import operands
from gdpa_inductor.kernels.blocked import tiling as cpu_blocks
from tests.activations import ACTIVATIONS

from .operators import CPU, canonical, in_small_blocks

forward_op, backward_op, same_as_reference = CPU.forward, CPU.backward, CPU.same_as_reference
small_blocks = pytest.fixture(in_small_blocks)


# Each is compiled twice, some seconds each. These resemble others: `make test` leaves them out.
SLOW = {
    "identity", "gelu", "relu", "relu6", "leaky_relu", "hardsigmoid", "tanh", "elu_plus_1",
    "softplus", "exp", "mish", "quick_gelu", "logsigmoid",
}  # fmt: skip


SHAPES = ((300, 48), (200, 48), (200, 40))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in ACTIVATIONS]
)
def test_error_rule_for_every_activation(name: str):
    """Outputs and gradients in fp32, fp16 and bf16; three blocks of rows with a tail."""
    eager_act, program = ACTIVATIONS[name]
    text = canonical(re.sub(r"\bs\b", "mul(s,0.125)", program))

    def eager(query, key, value):
        return eager_act(query @ key.mT * 0.125) @ value

    exact = [torch.randn(2, 2, n, d, dtype=torch.float64) for n, d in SHAPES]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        breach = CPU.breach(text, eager, [t.to(dtype) for t in exact])
        assert not breach, f"{name}, {dtype}: {breach}"


SILU = "silu(mul(s,0.125))"


def test_blocks_of_the_real_size():
    same_as_reference(SILU, sizes=(1, 2, 1100, 700), heads=(2, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_16_bits_where_masks_skip_blocks(small_blocks, monkeypatch, dtype):
    """Some keys of several heads are not contiguous, so their sums have memory of their own. The
    first product of the weights, in fp32, and the gradient of the output once raised."""
    monkeypatch.setattr(cpu_blocks, "SCORES", 2 * 16 * 64)
    same_as_reference(
        "where(ge(q_idx,kv_idx),silu(s),0.0)", dtypes=(dtype, dtype), rtol=2e-2, atol=2e-2
    )


def test_equal_bits_from_run_to_run(small_blocks):
    text = canonical("a0:f[h,q_idx,kv_idx]; a1:f[]; a2:f[kv_idx]; mul(silu(mul(add(s,a0),a1)),a2)")
    aux = [torch.randn(2, 70, 90), torch.randn(()), torch.randn(90)]
    query, key, value, grad_out = (torch.randn(3, 2, n, 16) for n in (70, 90, 90, 70))
    operands = (query, key, value, aux, [], text)

    def run() -> list[Tensor]:
        return [forward_op(*operands), *backward_op(grad_out, *operands, [True] * 6)]

    first = run()
    for _ in range(20):
        assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(dtype: torch.dtype):
    query, grad_out = (torch.randn(2, 4, 9, 8, dtype=dtype) for _ in range(2))
    key, value = (torch.randn(2, 2, 11, 8, dtype=dtype) for _ in range(2))
    aux = [torch.rand(9, 11) < 0.5, torch.randn(4)]
    text = canonical("a0:b[q_idx,kv_idx]; a1:f[h]; where(a0,silu(mul(s,a1)),0.0)")
    operands = (query, key, value, aux, [3], text)
    torch.library.opcheck(forward_op, operands)
    torch.library.opcheck(backward_op, (grad_out, *operands, [True, True, False, False, True]))


def test_autocast_and_grad_mode_of_the_caller_change_nothing():
    operands = [torch.randn(1, 2, 20, 8, requires_grad=True) for _ in range(3)]
    plain = forward_op(*[t.detach() for t in operands], [], [], SILU)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(plain, forward_op(*operands, [], [], SILU))
    with torch.inference_mode():
        assert torch.equal(plain, forward_op(*operands, [], [], SILU))


def test_few_compiles_serve_all_lengths():
    """Two batches in a block or one; a mask cut out of a wider one or whole: no more than four."""
    # A program of its own, so that no other test has compiled it.
    text = canonical("a0:b[q_idx,kv_idx]; where(a0,silu(mul(s,0.3217)),0.0)")
    before = cpu_pass._variant.cache_info().misses
    for length in range(2, 400, 13):
        operands = [torch.randn(2, 2, n, 8) for n in (length, 2 * length + 1, 2 * length + 1)]
        mask = torch.rand(length, 2 * length + 1) < 0.5
        expected = torch.ops.gdpa.attention(*operands, [mask], [], text, "")
        torch.testing.assert_close(forward_op(*operands, [mask], [], text), expected)
    assert cpu_pass._variant.cache_info().misses - before <= 4


def test_layouts_that_the_compiler_tells_apart_are_compiled_apart(monkeypatch):
    """A compiled pass that does not fit is not used."""
    text = canonical("a0:f[q_idx,kv_idx]; silu(mul(add(s,a0),0.4519))")
    operands = [torch.randn(1, 1, 40, 8) for _ in range(3)]
    wide = torch.randn(40, 100)
    for bias in (
        wide[:, :40],
        wide[:, 60:],
        wide[:, :80:2],
        wide[:40, :40].T,
        wide[:, 7, None].expand(40, 40),
    ):
        expected = torch.ops.gdpa.attention(*operands, [bias], [], text, "")
        torch.testing.assert_close(forward_op(*operands, [bias], [], text), expected)
    made = inductor.compile_graph(torch.Tensor.zero_, [torch.empty(5, 7)], dynamic=True, aot=False)
    assert made.fits([torch.empty(9, 11)])
    assert not made.fits([torch.empty(9, 22)[:, ::2]])


def test_without_a_compiler_the_pass_runs_as_it_is(monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise OSError("no C++ compiler")

    monkeypatch.setattr(inductor, "compile_graph", broken)
    with caplog.at_level("WARNING", logger="gdpa_inductor"):
        scale = torch.randn(4, dtype=torch.float64)
        same_as_reference("a0:f[h]; silu(mul(mul(s,0.7313),a0))", aux=[scale])
    assert "no C++ compiler" in caplog.text


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("groups", [(1, 1), (4, 2), (12, 1), (3, 4)])
def test_tiling(monkeypatch, threads, groups):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for sizes in (
        (1, 12, 1, 1),
        (3, 12, 4096, 4096),
        (64, 12, 40, 30),
        (2, 12, 8, 100_000),
        (2, 12, 513, 2049),
    ):
        tiling = cpu_blocks.tile(sizes, groups, shared=False)
        assert math.prod(tiling[:4]) <= threads * cpu_blocks.SCORES
        assert sizes[1] % tiling.heads == 0
        assert all(tiling.heads % g == 0 or g % tiling.heads == 0 for g in groups)
        assert tiling.batch == 1 or tiling.heads == sizes[1]
        assert cpu_blocks.tile(sizes, groups, shared=True).batch == 1
        for size, step in zip(
            sizes, (tiling.batch, tiling.heads, tiling.rows, tiling.cols), strict=True
        ):
            spans = list(operands.spans(size, step))
            assert [i for span in spans for i in range(size)[span]] == list(range(size))
            # As few blocks as the limit allows, and no sliver at the end.
            assert len(spans) == math.ceil(size / step)


def test_through_inductor_with_symbolic_lengths():
    """Counted, called by name in the generated code, compiled once for all lengths."""
    from torch._inductor.utils import run_and_get_code

    lowerings.register()
    text = "a0:f[h,q_idx,kv_idx]; div(silu(add(s,a0)),float(i0))"

    def model(query, key, value, bias):
        scalars = [query.shape[2]]
        return torch.ops.gdpa.attention(query, key, value, [bias], scalars, text, "").relu()

    compiled = torch.compile(model, fullgraph=True, dynamic=True)

    def check(length: int, first: bool = False) -> Sequence[str]:
        operands = [torch.randn(2, 2, length, 8) for _ in range(3)] + [
            torch.randn(2, length, length)
        ]
        leaves = [t.clone().requires_grad_() for t in operands]
        again = [t.clone().requires_grad_() for t in operands]
        weighting = torch.randn(2, 2, length, 8)

        def train() -> Tensor:
            loss = (compiled(*leaves) * weighting).sum()
            loss.backward()
            return loss

        loss, code = run_and_get_code(train) if first else (train(), [])
        expected = (model(*again) * weighting).sum()
        expected.backward()
        torch.testing.assert_close(loss, expected)
        for mine, theirs in zip(leaves, again, strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)
        return code

    code = check(20, first=True)  # run_and_get_code forgets what was compiled
    assert "gdpa.attention_cpu.default" in code[0]
    assert "gdpa.attention_cpu_backward.default" in code[1]
    assert not any("bmm" in text for text in code)
    for length in (33, 64, 150):
        check(length)
    counts = dynamo.counters["gdpa"]
    assert counts["lowered_cpu"] == 2 and counts["fallback"] == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_narrow_integers_do_not_wrap(dtype: torch.dtype, small_blocks) -> None:
    """0 - 5 of an operand of 8 bits is no 251."""
    text = "a0:i[kv_idx]; where(lt(sub(a0,5),kv_idx),s,0.0)"
    q, k, v = (torch.randn(1, 2, 40, 8) for _ in range(3))
    given = torch.arange(40) % 7
    found = forward_op(q, k, v, [given.to(dtype)], [], canonical(text))
    mask = given - 5 < torch.arange(40)
    torch.testing.assert_close(found, torch.where(mask, q @ k.mT, 0.0) @ v)
