"""The jagged form of gdpa::attention: its reference against a loop over sequences."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gdpa_inductor.operands import Operands
from gdpa_inductor.ops import operands_of
from gdpa_inductor.program.expr import POSITIONS
from gdpa_inductor.program.score_mod import ScoreMod, ScoreModError
from gdpa_inductor.reference import reference, reference_backward
from gdpa_inductor.rejection import GDPAError
from tests.jagged_cases import CASES, JaggedCase, poisoned
from tests.test_ops import OPCHECKS

EACH = pytest.mark.parametrize("name", CASES)


def gradients(out: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    leaves = [t for t in tensors if t.is_floating_point()]
    torch.manual_seed(1)
    grads = torch.autograd.grad(out, leaves, torch.randn_like(out), allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, grads)]


@EACH
def test_it_is_the_formula_of_each_sequence(name: str) -> None:
    case = CASES[name]
    tensors = case.tensors()
    actual, expected = case.call(tensors), case.by_hand(tensors)
    assert actual.is_contiguous()
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    if expected.requires_grad:
        ours, theirs = gradients(actual, tensors), gradients(expected, tensors)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.is_contiguous()
            torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-11)


@EACH
def test_gradients_in_fp64(name: str) -> None:
    case = CASES[name]
    tensors = case.tensors()
    fast = {"fast_mode": True, "atol": 1e-6}
    assert torch.autograd.gradcheck(lambda *leaves: case.call(leaves), tensors, **fast)


CHECKED = pytest.mark.parametrize(
    "name", ["self", "PFFN, one for all", "PMA", "truncated", "empty batch", "token and head",
             "token mask", "a row of bias per token", "dense operands"],
)  # fmt: skip


@CHECKED
def test_opcheck_of_the_forward(name: str) -> None:
    case = CASES[name]
    arguments = case.arguments(case.tensors(torch.float32), "")
    torch.library.opcheck(torch.ops.gdpa.attention.default, arguments, test_utils=OPCHECKS)


@CHECKED
def test_opcheck_of_the_backward(name: str) -> None:
    case = CASES[name]
    tensors = [t.detach() for t in case.tensors(torch.float32)]
    needs = [t.is_floating_point() for t in tensors]
    arguments = (torch.randn_like(case.call(tensors)), *case.arguments(tensors, needs, ""))
    torch.library.opcheck(torch.ops.gdpa.attention_backward.default, arguments, test_utils=OPCHECKS)


def test_low_precision_computes_in_fp32() -> None:
    case = CASES["token operands"]
    tensors = [t.detach().bfloat16() for t in case.tensors()]
    expected = case.by_hand([t.float() for t in tensors]).bfloat16()
    torch.testing.assert_close(case.call(tensors), expected, rtol=0.02, atol=0.02)


POISON = ["self", "own offsets", "truncated", "rows of nobody", "token operands", "PFFN",
          "a row of bias per token", "delta queries"]  # fmt: skip


@pytest.mark.parametrize("name", POISON)
def test_nothing_leaks_from_neighbours(name: str) -> None:
    case = replace(CASES[name], rows=CASES[name].rows and (3, 0, 2, 5), tail=2)
    clean = case.tensors()
    expected = case.call(clean)
    cotangent = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, clean[:3], cotangent)
    for b in range(case.batch):
        dirty, dirty_cotangent, parts = poisoned(case, clean, cotangent, b)
        actual = case.call(dirty)
        assert torch.equal(actual[parts[0]], expected[parts[0]])
        grads = torch.autograd.grad(actual, dirty[:3], dirty_cotangent)
        for grad, want, part in zip(grads, wanted, parts[1:], strict=True):
            assert torch.equal(grad[part], want[part])


def test_a_score_that_is_not_there_has_no_gradient() -> None:
    """log(0) at padding is -inf, and its slope infinite: neither may reach a product."""
    case = JaggedCase("log(abs(s))", lambda s, *_: s.abs().log(), cols=(2, 4, 0, 7))
    tensors = case.tensors()
    torch.testing.assert_close(case.call(tensors), case.by_hand(tensors))
    ours, theirs = (gradients(f(tensors), tensors) for f in (case.call, case.by_hand))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.isfinite().all()
        torch.testing.assert_close(mine, other)


def test_no_length_is_read_on_the_host() -> None:
    """Under fake tensors a read would raise; sizes of the result do not depend on the offsets."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    case = CASES["token operands"]
    tensors = [t.detach() for t in case.tensors()]
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in tensors]
        cu_q, cu_k = (mode.from_tensor(cu) for cu in case.offsets())
        operands = operands_of(
            *fakes[:3], fakes[3:], [], case.program, cu_q, cu_k, case.max_q, case.max_k
        )
        shape = reference(operands).shape
    assert shape == case.call(tensors).shape


L, B = 9, 4
Q, K, V = torch.randn(L, 4, 6), torch.randn(L, 2, 6), torch.randn(L, 1, 5)
CU = torch.tensor([0, 3, 3, 4, 9])
RIGHT = {
    "query": Q, "key": K, "value": V, "aux": [], "scalars": [], "score_mod": "s",
    "kernel_options": "", "cu_seqlens_q": CU, "cu_seqlens_k": CU, "max_seqlen_q": 5,
    "max_seqlen_k": 5,
}  # fmt: skip
DENSE_KEYS = {"cu_seqlens_k": None, "max_seqlen_k": 0}
DENSE_ROWS = {"cu_seqlens_q": None, "max_seqlen_q": 0, "query": torch.randn(4, 4, 3, 6)}
OTHER_BATCH = {"key": torch.randn(3, 2, 7, 6), "value": torch.randn(3, 1, 7, 5)}
BY_TOKEN = {"aux": [Q[:8, 0, 0]], "score_mod": "a0:f[q]; mul(s,a0)"}
BY_HEAD = {"aux": [Q], "score_mod": "a0:f[q,h,-]; mul(s,a0)"}
REAL = "cu_seqlens_q must be .batch . 1. of int32 or int64, got torch.float32"
FAULTS = {
    "rank": ({"query": Q[None]}, "query must be .total length, heads"),
    "value rank": ({"value": V[0]}, "value must be .total length"),
    "dense key": (DENSE_KEYS, "key must be .batch, heads, length"),
    "offsets dtype": ({"cu_seqlens_q": CU.float()}, REAL),
    "offsets rank": ({"cu_seqlens_k": CU[None]}, "cu_seqlens_k must be"),
    "no offsets": ({"cu_seqlens_q": CU[:0]}, "cu_seqlens_q is empty"),
    "batches": ({"cu_seqlens_k": CU[:3]}, "batch of cu_seqlens_k: 2 and 4"),
    "dense batch": ({**DENSE_KEYS, **OTHER_BATCH}, "batch of key: 3 and 4"),
    "lengths": ({"value": V[:8]}, "length of key and value: 9 and 8"),
    "token operand of a dense side": (
        {**DENSE_ROWS, **BY_HEAD}, "a0 is read by 'q', but that side is not jagged",
    ),
    "token operand": (BY_TOKEN, "dimension q of a0: 8 and 9"),
    "device": ({"cu_seqlens_q": CU.to("meta")}, "operands are on cpu and meta"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_bad_operands_are_named(name: str) -> None:
    wrong, message = FAULTS[name]
    with pytest.raises((GDPAError, RuntimeError), match=message):
        torch.ops.gdpa.attention(**{**RIGHT, **wrong})


@pytest.mark.parametrize("access", ["q,n", "b,q", "k,m", "k,b", "q,k", "q,q"])
def test_access_maps_that_read_an_index_twice(access: str) -> None:
    with pytest.raises(ScoreModError, match="reads an index twice"):
        ScoreMod.parse(f"a0:f[{access}]; mul(s,a0)")


def test_access_by_token_is_printed_and_says_what_it_varies_along() -> None:
    text = "a0:f[q,h]; a1:i[kv_idx,-,q]; a2:b[k]; where(a2,mul(add(s,a0),float(a1)),0.0)"
    program = ScoreMod.parse(text)
    assert str(program) == text
    assert [spec.axes for spec in program.aux] == [
        {"b", "q_idx", "h"},
        {"b", *POSITIONS},
        {"b", "kv_idx"},
    ]


def test_operands_there_and_back() -> None:
    case = CASES["token operands"]
    operands = operands_of(*case.arguments(case.tensors())[:6], *case.arguments(case.tensors())[6:])
    again = operands.filled(operands.flat())
    assert again == operands and isinstance(again, Operands)
    dense = operands_of(Q, K, V, [], [3], "div(s,float(i0))")
    assert dense.filled(dense.flat()) == dense and not dense.jagged


NARROW = "a0:i[kv_idx]; a1:i[q_idx]; where(lt(sub(a0,5),neg(a1)),s,0.0)"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_narrow_integers_are_computed_with_in_64_bits(dtype: torch.dtype) -> None:
    """0 - 5 and -200 do not wrap, whatever the operands are held in."""
    query, key, value = (torch.randn(1, 2, 40, 8, dtype=torch.float64) for _ in range(3))
    ends = torch.iinfo(dtype)
    indices = [torch.arange(40).clamp(max=ends.max) + first for first in (0, 3)]
    indices[0][:3] = ends.min
    narrow_indices = [x.to(dtype) for x in indices]
    wide, narrow = (
        reference(operands_of(query, key, value, aux, [], NARROW))
        for aux in (indices, narrow_indices)
    )
    mask = indices[0] - 5 < -indices[1][:, None]
    torch.testing.assert_close(wide, torch.where(mask, query @ key.mT, 0.0) @ value)
    torch.testing.assert_close(narrow, wide, rtol=0, atol=0)


def test_tables_against_autograd() -> None:
    """Learned tables [T, H] by position and [H, T] by an index [B, M, N], read out of order."""
    batch, heads, rows, cols, places = 2, 3, 5, 7, 9
    text = "a0:f[t,h]; a1:i[b,q_idx,kv_idx]; a2:f[h,t]; silu(add(add(s,{}),lookup(a2,a1)))"
    program = ScoreMod.parse(text.format("lookup(a0,add(sub(q_idx,kv_idx),6))"))
    shapes = [(batch, heads, n, 4) for n in (rows, cols, cols)] + [(11, heads), (heads, places)]
    tensors = [torch.randn(x, dtype=torch.float64, requires_grad=True) for x in shapes]
    q, k, v, position, table = tensors
    index = torch.randint(0, places, (batch, rows, cols), dtype=torch.uint8)
    o = Operands(*(x.detach() for x in (q, k, v)), [], [], program)
    o = o.with_aux([position.detach(), index, table.detach()])
    distance = torch.arange(rows)[:, None] - torch.arange(cols) + 6
    s = q @ k.mT + position[distance].permute(2, 0, 1) + table[:, index.long()].transpose(0, 1)
    out = torch.nn.functional.silu(s) @ v
    torch.testing.assert_close(reference(o), out.detach())
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, tensors, grad)
    actual = reference_backward(grad, o, [True, True, True, True, False, True])
    torch.testing.assert_close(actual, list(expected))


def test_a_place_outside_of_a_table_is_nan_and_has_no_gradient() -> None:
    program = ScoreMod.parse("a0:f[t]; add(s,lookup(a0,sub(q_idx,kv_idx)))")
    matrices = (torch.ones(1, 1, 3, 2) for _ in range(3))
    o = Operands(*matrices, [torch.arange(2.0)], [], program)
    out = reference(o)[0, 0, :, 0]
    assert out.isnan().tolist() == [True, True, True]  # q_idx - kv_idx is -2 to 2
    (grad,) = reference_backward(torch.ones(1, 1, 3, 2), o, [False, False, False, True])
    assert grad.tolist() == [6.0, 4.0]
