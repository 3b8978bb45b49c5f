"""What is read: programs, access maps, operands, as text."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import gdpa_inductor
from gdpa_inductor.options import Options
from gdpa_inductor.rejection import Code, Rejection
from tests import _recorder
from tests._recorder import ALWAYS, Recorder

B, H, M, N, D, E = 2, 3, 5, 7, 4, 6
HEADS = {"q": (B, H, M, D), "k": (B, H, N, D), "v": (B, H, N, E)}


def recorded(function, dtype=torch.float64, dynamic=False, **shapes) -> Recorder:
    operands = (
        shape if isinstance(shape, torch.Tensor) else torch.randn(shape, dtype=dtype)
        for shape in (shapes or HEADS).values()
    )
    return _recorder.recorded(function, *operands, dynamic=dynamic)


def program(function, **how) -> str:
    recorder = recorded(function, **how)
    assert len(recorder.matches) == 1, recorder.why()
    return str(recorder.matches[0].score_mod)


PROGRAMS = {
    "silu(mul(s,0.5))": lambda q, k, v: F.silu(q @ k.mT * 0.5) @ v,
    "silu(s)": lambda q, k, v: (lambda s: s * torch.sigmoid(s))(q @ k.mT) @ v,
    "div(relu(s),5.0)": lambda q, k, v: F.relu(q @ k.mT) / q.shape[2] @ v,
    "where(le(kv_idx,q_idx),s,0.0)": lambda q, k, v: (q @ k.mT).tril() @ v,
    "where(ge(kv_idx,add(q_idx,1)),s,0.0)": lambda q, k, v: (q @ k.mT).triu(1) @ v,
    "elu(s,1.0,1.0,1.0)": lambda q, k, v: F.elu(q @ k.mT) @ v,
    "detach(s)": lambda q, k, v: (q @ k.mT).detach() @ v,
    "f16(s)": lambda q, k, v: (q @ k.mT).half().to(v.dtype) @ v,
    "mul(float(gt(s,0.0)),s)": lambda q, k, v: (lambda s: (s > 0) * s)(q @ k.mT) @ v,
}


@pytest.mark.parametrize("text", PROGRAMS)
def test_programs(text):
    assert program(PROGRAMS[text]) == text


ACCESS = {
    "f[q_idx,kv_idx]": (M, N),
    "f[-,q_idx,kv_idx]": (1, M, N),
    "f[h,q_idx,kv_idx]": (H, M, N),
    "f[b,-,-,kv_idx]": (B, 1, 1, N),
    "f[kv_idx]": (N,),
    "f[h,-,-]": (H, 1, 1),
    "f[]": (),
    "f[-]": (1,),
    "f[b,h,q_idx,kv_idx]": (B, H, M, N),
}


@pytest.mark.parametrize("access", ACCESS)
def test_operands_are_passed_as_they_are(access):
    recorder = recorded(lambda q, k, v, a: F.silu(q @ k.mT + a) @ v, **HEADS, a=ACCESS[access])
    assert str(recorder.matches[0].score_mod) == f"a0:{access}; silu(add(s,a0))"
    assert "[%l_a_]" in recorder.graphs[0].after


def test_expanded_operands_are_read_at_their_own_size():
    def attention(q, k, v, a):
        return F.silu(q @ k.mT + a.unsqueeze(1).expand(B, H, M, N)) @ v

    assert program(attention, **HEADS, a=(B, M, N)).startswith("a0:f[b,q_idx,kv_idx]; ")


def test_one_operand_read_in_two_ways_is_two():
    def attention(q, k, v, a):
        return F.silu(q @ k.mT + a + a.mT) @ v

    same = {"q": (B, H, M, D), "k": (B, H, M, D), "v": (B, H, M, E)}
    text = program(attention, **same, a=(M, M))
    assert text == "a0:f[q_idx,kv_idx]; a1:f[kv_idx,q_idx]; silu(add(add(s,a0),a1))"


def test_masks_of_indices_become_part_of_the_program():
    def attention(q, k, v, lengths):
        rows, columns = torch.arange(M)[:, None], torch.arange(N)
        keep = (rows - columns < 3) & (columns < lengths[:, None, None, None])
        return torch.where(keep, F.silu(q @ k.mT), 0.0) @ v

    text = program(attention, **HEADS, lengths=torch.tensor([3, 5]))
    assert text == "a0:i[b]; where(and(lt(sub(q_idx,kv_idx),3),lt(kv_idx,a0)),silu(s),0.0)"


def test_symbolic_sizes_are_arguments():
    text = program(lambda q, k, v: F.silu(q @ k.mT) / k.shape[2] @ v, dynamic=True)
    assert text == "div(silu(s),float(i0))"


def test_symbolic_reals_are_programs_over_sizes():
    def attention(q, k, v):
        return F.silu(q @ k.mT / math.sqrt(q.shape[2])) @ v

    assert program(attention, dynamic=True) == "silu(div(s,sqrt(float(i0))))"


def test_shared_operands_keep_their_size():
    """Seeds without a batch; keys and values with fewer heads."""
    (match,) = recorded(
        lambda q, k, v: F.silu(q @ k.mT) @ v, q=(H, M, D), k=(B, 1, N, D), v=(B, 1, N, E)
    ).matches
    assert (match.problem.batch, match.problem.heads) == (B, H)
    assert (match.problem.key_heads, match.problem.value_heads) == (1, 1)


def test_exact_upcasts_of_query_and_key_are_read_through():
    def attention(q, k, v):
        return F.silu(q.float() @ k.float().mT).to(v.dtype) @ v

    (match,) = recorded(attention, dtype=torch.bfloat16).matches
    assert match.problem.dtype is match.problem.value_dtype is torch.bfloat16


def test_the_public_function_becomes_one_op():
    def attention(q, k, v):
        score_mod, mask_mod = lambda s, b, h, n, m: F.silu(s) + h, lambda b, h, n, m: n >= m
        how = {"score_mod": score_mod, "mask_mod": mask_mod, "scale": 0.5, "enable_gqa": True}
        return gdpa_inductor.attention(q, k, v, **how)

    shapes = {"q": (B, 6, M, 16), "k": (B, H, N, 16), "v": (B, H, N, 16)}
    (match,) = recorded(attention, dtype=torch.float32, **shapes).matches
    assert str(match.score_mod) == "where(ge(q_idx,kv_idx),add(silu(mul(s,0.5)),float(h)),0.0)"
    assert (match.problem.heads, match.problem.key_heads) == (6, H)


def test_a_refusal_of_the_lowering_is_the_regions():
    recorder = Recorder()
    refuse = lambda problem: Rejection(Code.DEVICE, "not today")
    from gdpa_inductor.patterns import rewrite_graph

    def backend(gm, inputs):
        before = str(gm.graph)
        recorder.graphs.append(rewrite_graph(gm, options=ALWAYS, supports=refuse))
        assert str(gm.graph) == before
        return gm.forward

    operands = [torch.randn(shape) for shape in HEADS.values()]
    torch.compile(lambda q, k, v: F.silu(q @ k.mT) @ v, backend=backend)(*operands)
    (refusal,) = recorder.graphs[0].rejections
    assert (refusal.code, refusal.reason) == (Code.DEVICE, "not today")


def test_profit_is_asked_for_small_regions():
    recorder = Recorder(options=Options())
    operands = [torch.randn(shape) for shape in HEADS.values()]
    torch.compile(lambda q, k, v: F.silu(q @ k.mT) @ v, backend=recorder)(*operands)
    assert [r.code for r in recorder.rejections] == [Code.TOO_SMALL]


def test_powers_and_right_hand_products_are_no_attention():
    power = recorded(lambda x: x @ x @ x, x=(B, M, M))
    linear = recorded(lambda q, k, v: q @ (k.mT @ v), q=(B, M, D), k=(B, N, D), v=(B, N, E))
    assert {r.code for r in (*power.rejections, *linear.rejections)} == {Code.CONTRACTION}


def test_nothing_is_executed():
    """The pass works on fakes: no real tensor is computed."""

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            actual = function(*args, **(kwargs or {}))
            result = [actual] if isinstance(actual, torch.Tensor) else []
            assert all(t.numel() < 2 or type(t) is not torch.Tensor for t in result), function
            return actual

    recorder = Recorder()

    def backend(gm, inputs):
        with Watch():
            return recorder(gm, inputs)

    operands = [torch.randn(shape) for shape in HEADS.values()]
    torch.compile(lambda q, k, v: F.silu(q @ k.mT).tril() @ v, backend=backend)(*operands)
    assert len(recorder.matches) == 1


# Found by the fuzzer


def test_a_gate_from_another_region_is_an_operand():
    def model(q, k, v, w):
        first = F.silu(q @ k.mT) @ v
        return (F.gelu(q @ k.mT) * torch.sigmoid(first.mean(-1, keepdim=True))) @ w

    assert len(recorded(model, **HEADS, w=(B, H, N, E)).matches) == 2


def test_operands_whose_strides_differ_from_their_fakes():
    """Dims of size 1 have strides of their own at run time: operands are reshaped, not viewed."""

    def model(q, k, v, x, y):
        s = (q @ k).permute(3, 4, 0, 2, 1).reshape(2, 15, 3, 3)
        s = F.relu(s) * (x.transpose(-2, -1) * y.permute(3, 2, 1, 0))
        return s.unflatten(1, (5, 3)).permute(2, 4, 3, 0, 1) @ v

    shapes = {"q": (3, 3, 1, 2, 3), "k": (3, 3, 3, 3, 5), "v": (3, 3, 3, 5, 5)}
    masks = {"x": torch.rand(2, 1, 3, 1) > 0.5, "y": torch.rand(3, 1, 15, 2).double()}
    assert len(recorded(model, **shapes, **masks).matches) == 1


def test_operands_that_no_split_into_batch_and_heads_suits_are_named():
    """Shifted windows: a bias for each head, a mask for each window, and what fits beside them."""

    def model(q, k, v, bias, mask, everywhere):
        s = (q @ k.mT + bias + everywhere).unflatten(0, (2, 4)) + mask[:, None]
        return F.silu(s.flatten(0, 1)) @ v

    masks = {"bias": (H, M, N), "mask": (4, M, N), "everywhere": (M, N)}
    recorder = recorded(model, q=(8, H, M, D), k=(8, H, N, D), v=(8, H, N, E), **masks)
    (refusal,) = recorder.rejections
    assert (refusal.code, re.sub(r" \(line \d+\)", "", refusal.reason)) == (
        Code.OPERAND_EXPANDS,
        "a mask or bias would have to be expanded over a part of the batch or heads: "
        f"`l_bias_` of shape [{H}, {M}, {N}], `l_mask_` of shape [4, {M}, {N}]",
    )


@pytest.mark.parametrize("read", ["reshape(s.shape)", "view_as(s)", "expand(s.size())"])
def test_sizes_of_the_scores_are_no_use_of_them(read):
    reshape = eval(f"lambda s: s.{read}")
    model = lambda q, k, v: F.silu(reshape(q @ k.mT)) @ v
    assert len(recorded(model, dynamic=True).matches) == 1


def test_sizes_of_the_scores_outside_of_the_region():
    """Who asks the scores for their shape gets it from the operands."""

    def model(q, k, v):
        s = q @ k.mT
        return F.silu(s) @ v / s.size(-1) + s.shape[2]

    recorder = recorded(model, dynamic=True)
    assert len(recorder.matches) == 1, recorder.why()
    assert recorder.graphs[0].products_left == 0


def test_whole_writes_through_a_view_are_followed():
    def model(q, k, v, a):
        s = F.silu(q @ k.mT)
        s[None][0].mul_(a)
        return s @ v

    assert program(model, **HEADS, a=(M, 1)) == "a0:f[q_idx,-]; mul(silu(s),a0)"


def test_rows_and_groups_shuffled_by_a_view_are_left():
    """[g, n] read as [n, g]: every score is used once, by another query than it looks like."""

    def model(q, k, v):
        s = torch.einsum("bgnd,bmd->bgnm", q, k)
        return torch.einsum("bgnm,bme->bgne", s.reshape(B, 6, 3, N).transpose(1, 2).relu(), v)

    recorder = recorded(model, q=(B, 3, 6, D), k=(B, N, D), v=(B, N, E))
    assert [r.code for r in recorder.rejections] == [Code.LAYOUT]
