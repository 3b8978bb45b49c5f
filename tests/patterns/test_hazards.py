"""The hazards of the design, each a test: refused with the right code, or fused to the letter.

A rewrite is compared with eager in fp64, values, gradients and what the call did to its arguments.
"""

import pytest
import torch
import torch.nn.functional as F

from tests._judge import compare
from tests._recorder import Recorder
from tests.operands import make_operands
from tests.patterns.rows import HEADS, SIZES

MUTATED = {"MUTATED_OPERAND", "MUTATED_SCORES"}


def judge(function, specs=HEADS, *, training=True, dtype=torch.float64, fullgraph=True) -> Recorder:
    """Compile with the recorder and compare with eager; the recorder."""
    recorder = Recorder()
    compiled = torch.compile(function, backend=recorder, fullgraph=fullgraph)
    operands = make_operands(specs, SIZES, dtype=dtype)
    fault = compare(function, compiled, operands, training=training)
    assert not fault, f"{fault}\n{recorder.graphs[-1].after}"
    assert all(graph.untouched for graph in recorder.graphs if not graph.matches)
    return recorder


def fused(function, specs=HEADS, **how) -> Recorder:
    recorder = judge(function, specs, **how)
    assert len(recorder.matches) == 1, recorder.why()
    return recorder


def refused(codes: set[str], function, specs=HEADS, **how) -> Recorder:
    recorder = judge(function, specs, **how)
    assert not recorder.matches
    assert {refusal.code.name for refusal in recorder.rejections} & codes, recorder.why()
    return recorder


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


def test_in_place_call_on_an_argument_survives():
    def attention(q, k, v, cache):
        cache.copy_(v)
        cache[..., 0] = 7.0
        return F.silu(q @ k.mT) @ v

    fused(attention, {**HEADS, "cache": "const: b h m e"})


# 2, 3. Mutations between the products, direct and through aliases.

BETWEEN = {
    "key": lambda q, k, v: k.mul_(2.0),
    "query": lambda q, k, v: q.add_(1.0),
    "value": lambda q, k, v: v.mul_(2.0),
    "part of the value": lambda q, k, v: v[..., 0].zero_(),
    "view of the value": lambda q, k, v: v.transpose(1, 2).add_(0.5),
    "flat view of the key": lambda q, k, v: k.view(-1)[:5].fill_(3.0),
    "slice of the query": lambda q, k, v: q.narrow(2, 0, 1).neg_(),
}


@pytest.mark.parametrize("what", BETWEEN)
def test_operand_changed_between_the_products(what):
    def attention(q, k, v):
        p = F.silu(q @ k.mT)
        BETWEEN[what](q, k, v)
        return p @ v

    judge(attention, training=False)


@pytest.mark.parametrize("what", ["key", "query", "flat view of the key", "slice of the query"])
def test_operand_of_the_first_product_changed_is_refused(what):
    def attention(q, k, v):
        p = F.silu(q @ k.mT)
        BETWEEN[what](q, k, v)
        return p @ v

    refused({"MUTATED_OPERAND"}, attention, training=False)


def test_operand_changed_before_the_first_product():
    def attention(q, k, v):
        k.mul_(2.0)
        return F.silu(q @ k.mT) @ v

    fused(attention, training=False)


def test_operand_changed_after_the_second_product():
    def attention(q, k, v):
        out = F.silu(q @ k.mT) @ v
        k.mul_(2.0)
        v.zero_()
        return out

    fused(attention, training=False)


def test_operand_changed_through_its_base():
    def attention(x, v):
        q, k = x.chunk(2, dim=-1)
        p = F.silu(q @ k.mT)
        x.mul_(3.0)
        return p @ v

    refused({"MUTATED_OPERAND"}, attention, {"x": "b h n 2*d", "v": "b h n e"}, training=False)


def test_operand_changed_through_a_sibling_view():
    def attention(x, v):
        q, k = x.chunk(2, dim=-1)
        p = F.silu(q @ k.mT)
        x[:, 0].zero_()
        return p @ v

    refused({"MUTATED_OPERAND"}, attention, {"x": "b h n 2*d", "v": "b h n e"}, training=False)


def test_bias_changed_after_its_use():
    def attention(q, k, v, bias):
        bias = bias * 1.0
        s = q @ k.mT + bias
        bias.zero_()
        return F.silu(s) @ v

    refused({"MUTATED_OPERAND"}, attention, {**HEADS, "bias": "const: h n m"}, training=False)


def test_mask_changed_after_its_use():
    def attention(q, k, v, mask):
        p = F.silu(q @ k.mT) * mask
        mask.logical_not_()
        return p @ v

    refused({"MUTATED_OPERAND"}, attention, {**HEADS, "mask": "bool: n m"}, training=False)


def test_mask_changed_before_its_use():
    """Between the products, yet the later value is the right one: refused, or that value read."""

    def attention(q, k, v, mask):
        s = q @ k.mT
        mask.logical_not_()
        return F.silu(s) * mask @ v

    judge(attention, {**HEADS, "mask": "bool: n m"}, training=False)


def test_bias_between_two_uses():
    def attention(q, k, v, bias):
        bias = bias * 1.0
        s = q @ k.mT + bias
        bias += 1.0
        return (F.silu(s) * bias) @ v

    judge(attention, {**HEADS, "bias": "const: h n m"}, training=False)


THROUGH_VIEWS = {
    "column": lambda s: s[..., 0].zero_(),
    "assignment": lambda s: s.__setitem__((Ellipsis, 0), 0.0),
    "where negative": lambda s: s.__setitem__(s < 0, 0.1),
    "flat": lambda s: s.view(-1).mul_(2.0),
    "transposed": lambda s: s.mT.add_(torch.arange(5.0, dtype=s.dtype)),
    "selected head": lambda s: s.select(1, 0).mul_(0.5),
    "out=": lambda s: torch.add(s, 1.0, out=s),
    "diagonal": lambda s: s.diagonal(dim1=-2, dim2=-1).fill_(0.0),
}


@pytest.mark.parametrize("how", THROUGH_VIEWS)
def test_scores_changed_through_a_view(how):
    def attention(q, k, v):
        s = q @ k.mT
        THROUGH_VIEWS[how](s)
        return F.silu(s) @ v

    # An in-place call of a whole view may be followed; part of a view must not be taken for all.
    judge(attention, training=how != "out=")


@pytest.mark.parametrize("how", ["column", "assignment", "selected head", "diagonal"])
def test_part_of_the_scores_changed_is_refused(how):
    def attention(q, k, v):
        s = q @ k.mT
        THROUGH_VIEWS[how](s)
        return F.silu(s) @ v

    refused(MUTATED | {"OPAQUE_CALL", "POINTWISE_OP", "CROSS_ELEMENT", "SCORES_ESCAPE"}, attention)


def test_alias_taken_before_the_change_sees_it():
    def attention(q, k, v):
        s = q @ k.mT
        alias = s[:]
        s.mul_(2.0)
        return F.silu(alias) @ v

    judge(attention)


def test_copy_taken_before_the_change_does_not_see_it():
    def attention(q, k, v):
        s = q @ k.mT
        copy = s.clone()
        s.mul_(2.0)
        return (F.silu(copy) + s) @ v

    judge(attention)


def test_weights_changed_after_the_second_product():
    def attention(q, k, v):
        p = F.silu(q @ k.mT)
        out = p @ v
        p.zero_()
        return out

    judge(attention, training=False)


def test_reused_buffer_for_two_regions():
    def attention(q, k, v):
        buffer = q @ k.mT
        first = F.silu(buffer) @ v
        buffer.mul_(2.0)
        return first, F.silu(buffer) @ v

    judge(attention, training=False)


# 4. Gradient mode and detach.


def test_no_grad_around_the_activation():
    def attention(q, k, v):
        s = q @ k.mT
        with torch.no_grad():
            p = F.silu(s)
        return p @ v

    judge(attention)


def test_no_grad_around_the_first_product():
    def attention(q, k, v):
        with torch.no_grad():
            s = q @ k.mT
        return F.silu(s) @ v

    judge(attention)


def test_no_grad_around_everything():
    def attention(q, k, v):
        with torch.no_grad():
            p = F.silu(q @ k.mT) @ v
        return p + v.sum()

    judge(attention)


def test_grad_enabled_inside_no_grad():
    def attention(q, k, v):
        with torch.no_grad():
            s = q @ k.mT
            with torch.enable_grad():
                return F.silu(s) @ v

    judge(attention)


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


def test_custom_function_before_the_region():
    fused(lambda q, k, v: F.silu(Straight.apply(q) @ k.mT) @ Straight.apply(v))


def test_custom_function_in_the_region():
    def attention(q, k, v):
        return Straight.apply(q @ k.mT) @ v

    refused({"OPAQUE_CALL", "POINTWISE_OP"}, attention)


def test_custom_function_makes_the_bias():
    def attention(q, k, v, bias):
        return F.silu(q @ k.mT + Straight.apply(bias)) @ v

    fused(attention, {**HEADS, "bias": "h n m"})


def test_random_mask_is_drawn_once():
    """A random tensor that does not depend on the scores is a leaf like any other."""

    def attention(q, k, v):
        keep = torch.rand(5, 7, dtype=q.dtype) < 0.5
        return F.silu(q @ k.mT) * keep @ v

    judge(attention)


def test_item_as_scale():
    def attention(q, k, v, length):
        return F.silu(q @ k.mT) / length.item() @ v

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        judge(attention, {**HEADS, "length": "count: "})


def test_cond_makes_the_query():
    def attention(q, k, v):
        q = torch.cond(q.sum() > 0, lambda x: x * 2.0, lambda x: x.sin(), (q,))
        return F.silu(q @ k.mT) @ v

    fused(attention, training=False)


# 6. Escapes: the table has them; here what is not one.


def test_pure_unused_branches_are_no_escape():
    def attention(q, k, v):
        s = q @ k.mT
        seen = s.detach().abs().mean()
        seen = seen * 2.0
        return F.silu(s) @ v

    fused(attention)


def test_use_by_a_mutation_is_an_escape():
    def attention(q, k, v, log):
        s = q @ k.mT
        log.copy_(s.detach().abs().mean())
        return F.silu(s) @ v

    refused({"SCORES_ESCAPE"}, attention, {**HEADS, "log": "const: "}, training=False)


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
    judge(lambda q, k, v: F.silu(CASTS[cast](q @ k.mT)) @ v)


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


def test_scores_in_single_precision():
    def attention(q, k, v):
        return F.silu((q @ k.mT).float() * 0.5).to(v.dtype) @ v

    fused(attention, dtype=torch.bfloat16)


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


def test_layout_of_the_output_is_eagers():
    """A `view` that works in eager works afterwards: strides are promised by the first trace."""

    def attention(q, k, v):
        p = F.silu(torch.einsum("bnhd,bmhd->bhnm", q, k))
        return torch.bmm(p.view(6, 5, 7), v).view(2, 3, 5, 6).transpose(1, 2).flatten(2)

    fused(attention, {"q": "b n h d", "k": "b m h d", "v": "b*h m e"})


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
