"""Mutations: of an operand between its use and the output, of the scores through a view, of a mask.

FX shows the users of a value, not those of its storage. Each case is refused, or fused to the
letter: compared with eager in fp64, values, gradients and what the call did to its arguments.
"""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tests.patterns.rows import HEADS, is_exact, is_fused, is_refused, judge, refused

PART_WRITTEN = {
    *("MUTATED_OPERAND", "MUTATED_SCORES", "OPAQUE_CALL", "POINTWISE_OP", "CROSS_ELEMENT"),
    "SCORES_ESCAPE",
}

# Operands between the products, direct and through aliases

OF_THE_FIRST_PRODUCT = {
    "key": lambda q, k, v: k.mul_(2.0),
    "query": lambda q, k, v: q.add_(1.0),
    "flat view of the key": lambda q, k, v: k.view(-1)[:5].fill_(3.0),
    "slice of the query": lambda q, k, v: q.narrow(2, 0, 1).neg_(),
}
BETWEEN = {
    **OF_THE_FIRST_PRODUCT,
    "value": lambda q, k, v: v.mul_(2.0),
    "part of the value": lambda q, k, v: v[..., 0].zero_(),
    "view of the value": lambda q, k, v: v.transpose(1, 2).add_(0.5),
}


@pytest.mark.parametrize("what", BETWEEN)
def test_operand_changed_between_the_products(what):
    def attention(q, k, v):
        p = F.silu(q @ k.mT)
        BETWEEN[what](q, k, v)
        return p @ v

    recorder = judge(attention, training=False)
    codes = [refusal.code.name for refusal in recorder.rejections]
    assert what not in OF_THE_FIRST_PRODUCT or codes == ["MUTATED_OPERAND"]


@is_fused(training=False)
def test_operand_changed_before_the_first_product(q, k, v):
    k.mul_(2.0)
    return F.silu(q @ k.mT) @ v


@is_fused(training=False)
def test_operand_changed_after_the_second_product(q, k, v):
    out = F.silu(q @ k.mT) @ v
    k.mul_(2.0)
    v.zero_()
    return out


@is_refused({"MUTATED_OPERAND"}, {"x": "b h n 2*d", "v": "b h n e"}, training=False)
def test_operand_changed_through_its_base(x, v):
    q, k = x.chunk(2, dim=-1)
    p = F.silu(q @ k.mT)
    x.mul_(3.0)
    return p @ v


@is_refused({"MUTATED_OPERAND"}, {"x": "b h n 2*d", "v": "b h n e"}, training=False)
def test_operand_changed_through_a_sibling_view(x, v):
    q, k = x.chunk(2, dim=-1)
    p = F.silu(q @ k.mT)
    x[:, 0].zero_()
    return p @ v


@is_refused({"MUTATED_OPERAND"}, {**HEADS, "bias": "const: h n m"}, training=False)
def test_bias_changed_after_its_use(q, k, v, bias):
    bias = bias * 1.0
    s = q @ k.mT + bias
    bias.zero_()
    return F.silu(s) @ v


@is_refused({"MUTATED_OPERAND"}, {**HEADS, "mask": "bool: n m"}, training=False)
def test_mask_changed_after_its_use(q, k, v, mask):
    p = F.silu(q @ k.mT) * mask
    mask.logical_not_()
    return p @ v


@is_exact({**HEADS, "mask": "bool: n m"}, training=False)
def test_mask_changed_before_its_use(q, k, v, mask):
    """Between the products, yet the later value is the right one: refused, or that value read."""
    s = q @ k.mT
    mask.logical_not_()
    return F.silu(s) * mask @ v


@is_exact({**HEADS, "bias": "const: h n m"}, training=False)
def test_bias_between_two_uses(q, k, v, bias):
    bias = bias * 1.0
    s = q @ k.mT + bias
    bias += 1.0
    return (F.silu(s) * bias) @ v


PART = {
    "column": lambda s: s[..., 0].zero_(),
    "assignment": lambda s: s.__setitem__((Ellipsis, 0), 0.0),
    "selected head": lambda s: s.select(1, 0).mul_(0.5),
    "diagonal": lambda s: s.diagonal(dim1=-2, dim2=-1).fill_(0.0),
}
WHOLE = {
    "where negative": lambda s: s.__setitem__(s < 0, 0.1),
    "flat": lambda s: s.view(-1).mul_(2.0),
    "transposed": lambda s: s.mT.add_(torch.arange(5.0, dtype=s.dtype)),
}
WITHOUT_GRADIENTS = {
    "out=": lambda s: torch.add(s, 1.0, out=s),
    "copy into a column": lambda s: s[..., 0].copy_(s[..., 1]),
    "copy of itself": lambda s: s.copy_(s * 2),
    "every row": lambda s: [row.mul_(2.0) for row in s.unbind(-2)],
    "two aliases": lambda s: (s.view(-1).mul_(2.0), s.transpose(1, 2).add_(1.0)),
    "boolean index": lambda s: s.masked_fill_(s > 1, 1.0),
    "index put": lambda s: s.index_put_((torch.tensor([0]),), torch.tensor(0.5, dtype=s.dtype)),
    "index add": lambda s: s.index_add_(-1, torch.tensor([1]), s[..., :1].clone()),
    "foreach": lambda s: torch._foreach_mul_([s], 2.0),
    "swap of halves": lambda s: s[..., :3].copy_(s[..., 3:6].clone()),
    "zero_": lambda s: s.zero_(),
    "uniform_": lambda s: s.uniform_(),
    "iadd of itself": lambda s: s.__iadd__(s),
}
INTO_SCORES = {**PART, **WHOLE, **WITHOUT_GRADIENTS}


@pytest.mark.parametrize("how", INTO_SCORES)
def test_scores_changed_in_place(how):
    """A write into the whole may be followed; a part must not be taken for all."""

    def attention(q, k, v):
        s = q @ k.mT
        INTO_SCORES[how](s)
        return F.silu(s) @ v

    check = partial(refused, PART_WRITTEN) if how in PART else judge
    check(attention, training=how not in WITHOUT_GRADIENTS)


@is_exact()
def test_alias_taken_before_the_change_sees_it(q, k, v):
    s = q @ k.mT
    alias = s[:]
    s.mul_(2.0)
    return F.silu(alias) @ v


@is_exact()
def test_copy_taken_before_the_change_does_not_see_it(q, k, v):
    s = q @ k.mT
    copy = s.clone()
    s.mul_(2.0)
    return (F.silu(copy) + s) @ v


@is_exact(training=False)
def test_weights_changed_after_the_second_product(q, k, v):
    p = F.silu(q @ k.mT)
    out = p @ v
    p.zero_()
    return out


@is_exact(training=False)
def test_reused_buffer_for_two_regions(q, k, v):
    buffer = q @ k.mT
    first = F.silu(buffer) @ v
    buffer.mul_(2.0)
    return first, F.silu(buffer) @ v
