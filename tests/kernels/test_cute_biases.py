"""Gradients of biases: which a kernel can give, and how they are summed from what it stores.

The kernel itself is tested on the card: tests/gpu/test_cute_biases.py.
"""

import functools
import types
from typing import Any

import pytest
import torch

from gdpa_inductor.kernels.cute.backward import biases
from gdpa_inductor.kernels.cute.backward.roots import factor_of, no_such_biases, no_such_heads
from gdpa_inductor.operands import Operands
from gdpa_inductor.program.expr import fold, postorder, torch_apply
from gdpa_inductor.program.score_mod import ScoreMod

ADDED = "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.1),a0))"
SMALL = "a0:f[h,q_idx,kv_idx]; silu(add(s,mul(a0,0.001)))"
TINY = "a0:f[h,q_idx,kv_idx]; silu(add(s,mul(a0,1e-40)))"
GATED = "a0:f[h]; a1:f[h,q_idx,kv_idx]; mul(a0,silu(add(mul(s,0.1),a1)))"


def test_other_value_heads_are_refused():
    assert "not 2 key heads and 1 value heads" in no_such_heads(2, 1, False)
    assert not no_such_heads(2, 2, True)


@pytest.mark.parametrize(
    "program, needs, dtype, reason",
    [
        (ADDED, (True,), "float16", ""),
        (GATED, (False,), "float16", ""),
        (GATED, (False, True), "bfloat16", ""),
        (GATED, (True, True), "bfloat16", "not added to the score, as a0"),
        (SMALL, (True,), "float16", "whose slope is 1000 times smaller"),
        (SMALL, (True,), "bfloat16", ""),
        (TINY, (True,), "bfloat16", "whose slope is 1e+40 times smaller"),
    ],
)
def test_refusals_say_why(program, needs, dtype, reason):
    result = no_such_biases(program, needs, dtype)
    assert reason in result and bool(reason) == bool(result)


HALVED = "where(le(kv_idx,q_idx),mul(sigmoid(add(s,mul(a0,4.0))),0.5),0.0)"


@pytest.mark.parametrize(
    "program, factor",
    [
        ("silu(add(mul(s,0.1),a0))", 0.1),
        ("silu(mul(add(s,a0),0.1))", 1.0),
        ("relu(sub(div(s,8.0),a0))", -0.125),
        (HALVED, 0.25),
        ("mul(silu(s),a0)", 0.0),
        ("silu(add(s,mul(a0,a0)))", 0.0),
        ("add(silu(add(s,a0)),a0)", 0.0),
        ("add(relu(s),a0)", 0.0),
        ("silu(bf16(add(bf16(mul(s,0.5)),bf16(a0))))", 0.5),
    ],
)
def test_factor_between_the_slopes(program: str, factor: float):
    """Slope of the score = factor · slope of the operand, at random places."""
    text = f"a0:f[h,q_idx,kv_idx]; {program}"
    assert factor_of(text, 0) == pytest.approx(factor)
    mod = ScoreMod.parse(text)
    s, a = (torch.randn(50, dtype=torch.float64, requires_grad=True) for _ in range(2))
    known = {"s": s, "aux": a, "q_idx": torch.arange(50), "kv_idx": torch.arange(50) % 7}

    def leaf(node):
        return torch.tensor(node.value, dtype=s.dtype) if node.is_const else known[node.op]

    (weight,) = fold([mod.weight], leaf, torch_apply(s.dtype))
    slope, other = torch.autograd.grad(weight.sum(), (s, a))
    assert torch.allclose(slope, factor * other) == bool(factor)


AXES = {
    "of each score": ("b,h,q_idx,kv_idx",),
    "of heads": ("-,h,q_idx,kv_idx",),
    "of heads, without a batch": ("h,q_idx,kv_idx",),
    "of batches": ("b,-,q_idx,kv_idx",),
    "of positions": ("q_idx,kv_idx",),
    "of keys": ("b,-,-,kv_idx",),
    "keys first": ("h,kv_idx,q_idx",),
    "of heads, and of batches": ("h,q_idx,kv_idx", "b,-,q_idx,kv_idx"),
}


@pytest.mark.parametrize("room", [1, biases.ROOM], ids=["parts", "at once"])
@pytest.mark.parametrize("cuts", [False, True], ids=["all keys", "some keys"])
@pytest.mark.parametrize("spare", [False, True], ids=["", "in place"])
@pytest.mark.parametrize("shared", ["", "k"])
@pytest.mark.parametrize("cols", [16, 13])
@pytest.mark.parametrize("axes", AXES)
def test_sums_of_what_the_kernel_stores(axes, cols, shared, spare, cuts, room, monkeypatch):
    """With the formula in place of the kernel, in fp64. Sums of several parts are in fp32."""
    monkeypatch.setattr(biases, "ROOM", room)
    sizes = {"b": 3, "h": 4, "q_idx": 6, "kv_idx": cols, "-": 1}
    maps = [access.split(",") for access in AXES[axes]]
    aux = [torch.randn([sizes[x] for x in access], dtype=torch.float64) for access in maps]
    added = "add(add(mul(s,0.3),a0),mul(a1,0.5))" if len(aux) > 1 else "add(mul(s,0.3),a0)"
    arguments = "; ".join(f"a{i}:f[{access}]" for i, access in enumerate(AXES[axes]))
    program = ScoreMod.parse(f"{arguments}; silu({added})")
    q, grad = (torch.randn(3, 4, 6, 5, dtype=torch.float64) for _ in range(2))
    k, v = (torch.randn(1 if x in shared else 3, 2, cols, 5, dtype=torch.float64) for x in "kv")
    o = Operands(q, k, v, aux, (), program, None, None, 0, 0)
    launches, sums = [], torch.empty(0, dtype=torch.float64)

    def launch(share: biases.Share, o, grad_out, rooms, stored) -> Any:
        launches.append(share)
        *grads, scores = plain(o, grad_out)[1]
        if share.part in ("middle", "last"):
            grads[0] += sums
        sums.resize_(grads[0].shape).copy_(grads[0])
        for letter, result in zip("qkv", grads):
            rooms[letter].copy_(result)
        stored.copy_(scores)
        return part

    division = biases.Division(o, range(len(aux)), 8, 1, cuts)
    needs = (True,) * (3 + len(aux))
    wanted, copies = plain(o, grad)[0], [x.clone() for x in aux]
    numbers = range(len(aux)) if spare else ()
    record: Any = types.SimpleNamespace(add_buffer=lambda x: x, fails=False)
    scratch = functools.cache(lambda _, shape, dtype: torch.full(shape, torch.nan, dtype=dtype))
    part = types.SimpleNamespace(total=lambda *_: False, scratch=scratch, record=record)
    arguments = (division, launch, record, numbers)
    results = biases.gradients(grad, o, needs, *arguments)
    for x, before, mine in zip(aux, copies, results[3:], strict=True):
        assert torch.equal(x, before) or mine.data_ptr() == x.data_ptr()
        assert spare or torch.equal(x, before)
    for mine, exact in zip(results, wanted, strict=True):
        assert mine.is_contiguous()
        torch.testing.assert_close(mine, exact, rtol=1e-5, atol=1e-5)
    whole = axes == "of each score" and cols % biases.ALIGNED == 0
    assert (len(launches) == 1) == (whole or room > 1)
    assert any(share.part for share in launches) == (cuts and not whole and room == 1)


def plain(o: Operands[torch.Tensor], grad: torch.Tensor) -> tuple[list, list]:
    """The gradients of all operands, and those of matrices and of the first operand's scores."""
    leaves = [x.detach().requires_grad_() for x in o.differentiable]
    q, k, v, *aux = leaves
    batch, heads = q.shape[:2]
    key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    spread = [biases.aux_on_axes(x, spec) for x, spec in zip(aux, o.program.aux)]
    scores = spread[0].expand(batch, heads, q.shape[2], k.shape[2])
    rest = 0.5 * spread[1] if len(spread) > 1 else 0.0
    out = torch.nn.functional.silu(q @ key.mT * 0.3 + scores + rest) @ value
    result = torch.autograd.grad(out, [*leaves, scores], grad)
    return list(result[:-1]), [*result[:3], result[-1]]


@pytest.mark.parametrize(
    "program, parts",
    [
        ("a0:f[q_idx,kv_idx]; where(lt(h,2),silu(add(s,a0)),0.0)", 3),
        ("a0:f[b,q_idx,kv_idx]; where(lt(b,2),silu(add(s,a0)),0.0)", 2),
        ("a0:f[b,q_idx,kv_idx]; silu(add(add(s,a0),mul(float(add(b,h)),0.1)))", 1),
    ],
)
def test_parts_keep_the_numbers_that_a_program_reads(program, parts, monkeypatch):
    """Within a part, a kernel numbers batches and heads from 0."""
    monkeypatch.setattr(biases, "ROOM", 1)
    q, k = torch.randn(3, 4, 6, 5), torch.randn(3, 2, 16, 5)
    shape = (6, 16) if "a0:f[q" in program else (3, 6, 16)
    o = Operands(q, k, k, [torch.randn(shape)], (), ScoreMod.parse(program), None, None, 0, 0)
    shares = biases.Division(o, [0], 4, 8).shares
    assert len(shares) == parts
    read = {node.op for node in postorder([o.program.weight])}
    assert all(share.whole or "bh"[share.axis] not in read for share in shares)
