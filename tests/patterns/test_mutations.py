"""Mutations: of an operand between its use and the output, of the scores through a view, of a mask.

FX shows the users of a value, not those of its storage. Each case is refused, or fused to the
letter: compared with eager in fp64, values, gradients and what the call did to its arguments.
"""

import pytest
import torch
import torch.nn.functional as F

from tests.patterns.rows import HEADS, fused, judge, refused

MUTATED = {"MUTATED_OPERAND", "MUTATED_SCORES"}

# Operands between the products, direct and through aliases

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
