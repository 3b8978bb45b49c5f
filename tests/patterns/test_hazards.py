"""The hazards of the design, each a test: refused with the right code, or fused to the letter.

A rewrite is compared with eager in fp64, values, gradients and what the call did to its arguments.
"""

import pytest
import torch
import torch.nn.functional as F

from tests._recorder import Recorder
from tests.operands import make_operands
from tests.patterns.rows import HEADS, SIZES, fused, is_exact, is_fused, is_refused, judge, refused
from tests.tolerances import FP64_RELATIVE

# 1. In-place calls look pure to FX; dead code elimination on a Dynamo graph would lose them.


def test_in_place_calls_elsewhere_survive():
    def attention(q, k, v):
        q = q * 1.0
        q.mul_(0.5)
        out = F.silu(q @ k.mT) @ v
        out.add_(1.0)
        return out

    recorder = fused(attention)
    calls = recorder.graphs[0].calls_after
    assert calls["mul_"] == calls["add_"] == 1


@is_fused({**HEADS, "cache": "const: b h m e"})
def test_in_place_call_on_an_argument_survives(q, k, v, cache):
    cache.copy_(v)
    cache[..., 0] = 7.0
    return F.silu(q @ k.mT) @ v


# 4. Gradient mode and detach.


@is_exact()
def test_no_grad_around_the_activation(q, k, v):
    s = q @ k.mT
    with torch.no_grad():
        p = F.silu(s)
    return p @ v


@is_refused({"GRAD_MODE"})
def test_no_grad_around_the_first_product(q, k, v):
    with torch.no_grad():
        s = q @ k.mT
    return F.silu(s) @ v


@is_exact()
def test_no_grad_around_everything(q, k, v):
    with torch.no_grad():
        p = F.silu(q @ k.mT) @ v
    return p + v.sum()


@is_exact()
def test_grad_enabled_inside_no_grad(q, k, v):
    with torch.no_grad():
        s = q @ k.mT
        with torch.enable_grad():
            return F.silu(s) @ v


DETACHED = {
    "query": lambda q, k, v, s: F.silu(s(q.detach(), k)) @ v,
    "key": lambda q, k, v, s: F.silu(s(q, k.detach())) @ v,
    "value": lambda q, k, v, s: F.silu(s(q, k)) @ v.detach(),
    "scores": lambda q, k, v, s: F.silu(s(q, k).detach()) @ v,
    "weights": lambda q, k, v, s: F.silu(s(q, k)).detach() @ v,
    "gate": lambda q, k, v, s: (s(q, k) * torch.sigmoid(s(q, k)).detach()) @ v,
    "part": lambda q, k, v, s: (F.silu(s(q, k)) + s(q, k).detach() * 0.1) @ v,
}


@pytest.mark.parametrize("what", DETACHED)
def test_detach(what):
    def attention(q, k, v):
        return DETACHED[what](q, k, v, lambda x, y: x @ y.mT)

    judge(attention)


# 5. What cannot be analysed is a leaf outside the region and a reason inside it.


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clamp(-1.0, 1.0)

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5


@is_fused()
def test_custom_function_before_the_region(q, k, v):
    return F.silu(Straight.apply(q) @ k.mT) @ Straight.apply(v)


@is_refused({"OPAQUE_CALL", "POINTWISE_OP"})
def test_custom_function_in_the_region(q, k, v):
    return Straight.apply(q @ k.mT) @ v


def test_a_body_that_acts_on_the_scores_is_named():
    """A body without a product is a part of the region that is not read."""

    def checkpointed(q, k, v):
        return torch.utils.checkpoint.checkpoint(F.silu, q @ k.mT, use_reentrant=False) @ v

    def branches(q, k, v):
        return torch.cond(q.sum() > 0, torch.tanh, torch.sigmoid, (q @ k.mT,)) @ v

    refused({"OPAQUE_CALL"}, checkpointed)
    refused({"OPAQUE_CALL"}, branches)


@is_fused({**HEADS, "bias": "h n m"})
def test_custom_function_makes_the_bias(q, k, v, bias):
    return F.silu(q @ k.mT + Straight.apply(bias)) @ v


@is_exact()
def test_random_mask_is_drawn_once(q, k, v):
    """A random tensor that does not depend on the scores is a leaf like any other."""
    keep = torch.rand(5, 7, dtype=q.dtype) < 0.5
    return F.silu(q @ k.mT) * keep @ v


@is_fused(training=False)
def test_cond_makes_the_query(q, k, v):
    q = torch.cond(q.sum() > 0, lambda x: x * 2.0, lambda x: x.sin(), (q,))
    return F.silu(q @ k.mT) @ v


# 6. Escapes: the table has them; here what is not one.


@is_fused()
def test_pure_unused_branches_are_no_escape(q, k, v):
    s = q @ k.mT
    seen = s.detach().abs().mean()
    seen = seen * 2.0
    return F.silu(s) @ v


FACTORIES = {
    "zero": lambda s, p: s.new_zeros(()),
    "one for each key": lambda s, p: s.new_ones(s.shape[-1]),
    "by name": lambda s, p: s.new_zeros(size=(2, 3)),
    "of integers": lambda s, p: s.new_full((2,), 7, dtype=torch.int32),
    "filled afterwards": lambda s, p: s.new_empty(2).fill_(3.0),
    "of the weights": lambda s, p: p.new_ones(()),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("how", FACTORIES)
def test_a_new_tensor_of_the_scores_dtype_is_no_escape(how, dynamic):
    """It reads no score. It is made from an operand then."""

    def attention(q, k, v):
        s = q @ k.mT
        p = F.silu(s)
        return p @ v, FACTORIES[how](s, p)

    with torch._dynamo.config.patch(assume_static_by_default=not dynamic):
        recorder = fused(attention)
    assert recorder.graphs[0].products_left == 0


@is_fused()
def test_a_new_tensor_between_the_products_may_be_used_elsewhere(q, k, v):
    s = q @ k.mT
    zero = s.new_zeros(())
    out = torch.where(s > 0.1, s, zero) @ v
    return out, zero.add_(out.mean())


def test_a_new_tensor_has_the_dtype_that_autocast_gave_the_scores():
    def attention(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            s = q @ k.mT
        return F.silu(s) @ v.bfloat16(), s.new_zeros(3)

    recorder = Recorder()
    operands = make_operands(HEADS, SIZES, dtype=torch.float32)
    _, zeros = torch.compile(attention, backend=recorder, fullgraph=True)(**operands)
    assert len(recorder.matches) == 1, recorder.why()
    assert zeros.dtype == torch.bfloat16 and zeros.tolist() == [0.0] * 3


def written(s, change):
    built = s.new_zeros(s.shape)
    change(built, s)
    return built


ESCAPES = {
    "filled with the scores": lambda s: (s, written(s, lambda x, s: x.copy_(s))),
    "the weights themselves": lambda s: (written(s, lambda x, s: x.copy_(F.silu(s))),) * 2,
    "changed between": lambda s: (lambda x: (F.silu(s) + x, x))(
        written(s, lambda x, s: x.add_(1.0))
    ),
    "one score in it": lambda s: (F.silu(s), written(s, lambda x, s: x[0].add_(s.mean()))),
    "filled with a score": lambda s: (F.silu(s), s.new_full((2,), 1.0) * s.mean()),
    "a copy": lambda s: (F.silu(s), s.new_tensor(s.detach())),
    "of the scores' strides": lambda s: (F.silu(s), torch.zeros_like(s)),
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("how", ESCAPES)
def test_a_new_tensor_that_scores_enter_is_an_escape(how):
    def attention(q, k, v):
        weights, seen = ESCAPES[how](q @ k.mT)
        return weights @ v, seen

    refused({"SCORES_ESCAPE"}, attention, training=False)


@is_refused({"SCORES_ESCAPE"}, {**HEADS, "log": "const: "}, training=False)
def test_use_by_a_mutation_is_an_escape(q, k, v, log):
    s = q @ k.mT
    log.copy_(s.detach().abs().mean())
    return F.silu(s) @ v


# 8. Types between the products.

CASTS = {
    "half": lambda s: s.half().to(s.dtype),
    "bfloat16": lambda s: s.to(torch.bfloat16).to(s.dtype),
    "int": lambda s: (s * 4).to(torch.int32).to(s.dtype) + s,
    "long": lambda s: s.long() * s,
    "bool": lambda s: s.bool() * s,
    "round": lambda s: s.round() + s,
    "single": lambda s: s.float().to(s.dtype),
}


@pytest.mark.parametrize("cast", CASTS)
def test_explicit_rounding_is_part_of_the_program(cast):
    """Forward to the letter. Autograd rounds the gradient, too, at the cast: ours need not."""
    narrow = {"half": torch.float16, "bfloat16": torch.bfloat16, "single": torch.float32}.get(cast)
    bound = 4 * torch.finfo(narrow).eps if narrow else FP64_RELATIVE
    judge(lambda q, k, v: F.silu(CASTS[cast](q @ k.mT)) @ v, gradient_relative=bound)


def test_single_precision_mask_on_bfloat16_scores():
    """An fp32 mask promotes the weights; the product wants bf16 again."""
    mask = (torch.arange(5)[:, None] >= torch.arange(7)).float()

    def attention(q, k, v):
        return (F.silu(q @ k.mT) * mask).to(v.dtype) @ v

    fused(attention, dtype=torch.bfloat16)


def test_single_precision_bias_on_bfloat16_scores():
    bias = torch.linspace(-1.0, 1.0, 35).view(5, 7)

    def attention(q, k, v):
        return F.silu(q @ k.mT + bias).type_as(v) @ v

    fused(attention, dtype=torch.bfloat16)


@is_fused(dtype=torch.bfloat16)
def test_scores_in_single_precision(q, k, v):
    return F.silu((q @ k.mT).float() * 0.5).to(v.dtype) @ v


# 12. Infinite fills: NaN where eager has NaN, and nowhere else.


@pytest.mark.parametrize(
    "act", [F.silu, F.gelu, F.hardswish, F.mish, F.relu, torch.sigmoid, torch.exp]
)
@pytest.mark.parametrize("fill", [float("-inf"), float("inf"), float("nan"), -1e4])
def test_infinite_fill(act, fill):
    def attention(q, k, v, mask):
        return act((q @ k.mT).masked_fill(mask, fill)) @ v

    judge(attention, {**HEADS, "mask": "bool: n m"})


# 14. Identical operands, strides.


@is_fused({"q": "b n h d", "k": "b m h d", "v": "b*h m e"})
def test_layout_of_the_output_is_eagers(q, k, v):
    """A `view` that works in eager works afterwards: strides are promised by the first trace."""
    p = F.silu(torch.einsum("bnhd,bmhd->bhnm", q, k))
    return torch.bmm(p.view(6, 5, 7), v).view(2, 3, 5, 6).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("result", ["bhne", "bnhe", "nbhe", "hben", "enhb"])
def test_strides_are_eagers(result):
    def attention(q, k, v):
        p = F.silu(torch.einsum("bhnd,bhmd->bhnm", q, k))
        return torch.einsum(f"bhnm,bhme->{result}", p, v)

    recorder = Recorder()
    operands = make_operands(HEADS, SIZES)
    got = torch.compile(attention, backend=recorder, fullgraph=True)(**operands)
    assert len(recorder.matches) == 1
    assert got.stride() == attention(**operands).stride()


# Where a graph ends


def test_graph_break_between_the_products():
    def attention(q, k, v):
        s = q @ k.mT
        torch._dynamo.graph_break()
        return F.silu(s) @ v

    recorder = judge(attention, fullgraph=False)
    assert not recorder.matches


def test_fewer_than_two_products():
    recorder = judge(lambda q, k, v: F.silu(q @ k.mT))
    assert recorder.untouched and not recorder.rejections


def test_places_are_the_users():
    def attention(q, k, v):
        first = F.silu(q @ k.mT) @ v
        return F.softmax(first @ first.mT, -1) @ v[:, :, :5]

    recorder = judge(attention)
    first = attention.__code__.co_firstlineno
    (match,) = recorder.matches
    assert match.location.endswith(f"{__file__.rsplit('/', 1)[1]}:{first + 1}")
    places = {refusal.location.rsplit(":", 1)[1] for refusal in recorder.rejections}
    assert str(first + 2) in places
