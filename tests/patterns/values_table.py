"""One set of scores, or of weights, that multiplies several values."""

import torch
import torch.nn.functional as F

from tests.patterns.rows import HEADS, SELF, either, fuse, refuse

ESCAPES = ("SCORES_ESCAPE", "NORMALISED")
TWO = {**HEADS, "u": "b h m e"}


@either(varies=True, **TWO)
def two_values(q, k, v, u):
    """MossFormer: relu² multiplies V and U. One call has both side by side."""
    w = F.relu(q @ k.mT / q.shape[-2]) ** 2
    return w @ v, w @ u


@either(**HEADS, u="b h m 3", t="b h m 1")
def three_values_of_other_widths(q, k, v, u, t):
    w = F.silu(q @ k.mT)
    return w @ v, torch.matmul(w, u), torch.einsum("bhnm,bhme->bhne", w, t)


@either(**HEADS)
def one_value_twice(q, k, v):
    w = F.silu(q @ k.mT)
    return w @ v, (w @ v).sin()


@either(varies=True, **TWO, mask="bool: n m", bias="h n m")
def two_values_with_mask_and_bias(q, k, v, u, mask, bias):
    w = torch.sigmoid(q @ k.mT + bias).masked_fill(mask, 0.0)
    return torch.cat([w @ v, w @ u], -1)


@fuse(regions=2, **HEADS, u="b 1 m e")
def a_value_that_heads_share(q, k, v, u):
    """The two do not stand side by side, so that the scores are computed twice."""
    w = F.silu(q @ k.mT)
    return w @ v, w @ u


@fuse(regions=2, **TWO)
def two_functions_of_one_score(q, k, v, u):
    s = q @ k.mT
    return F.silu(s) @ v + torch.tanh(s) @ u


@fuse(regions=2, **TWO)
def a_value_that_is_made_from_the_first_result(q, k, v, u):
    w = F.silu(q @ k.mT)
    first = w @ v
    return w @ (u * first.mean(2, keepdim=True))


@fuse(regions=2, **TWO)
def weights_that_the_first_result_scales(q, k, v, u):
    w = torch.sigmoid(q @ k.mT)
    gate = (w @ v).sum(-1, keepdim=True)
    return (w * gate) @ u


@fuse(regions=2, **TWO)
def values_made_between(q, k, v, u):
    w = F.silu(q @ k.mT)
    first = w @ v
    return first, w @ u.sin()


@either(**TWO)
def results_written_in_place(q, k, v, u):
    w = F.silu(q @ k.mT)
    first, other = w @ v, w @ u
    first.mul_(2).add_(other)
    other += 1
    return first.sin(), other.cos()


@either(**TWO)
def weights_written_between(q, k, v, u):
    w = F.silu(q @ k.mT)
    first = w.clone() @ v
    w.mul_(2)
    return first, w @ u


@either(**TWO)
def a_value_written_between(q, k, v, u):
    w, u = F.silu(q @ k.mT), u * 1
    first = w @ v
    u.mul_(3)
    return first, w @ u


@either(**TWO)
def one_value_without_gradient(q, k, v, u):
    w = F.silu(q @ k.mT)
    with torch.no_grad():
        other = w @ u
    return w @ v, other


@either(varies=True, **SELF)
def weights_and_their_transpose(q, k, v):
    w = F.silu(q @ k.mT)
    return w @ v, w.mT @ v.sin()


@refuse(*ESCAPES, **TWO)
def two_values_and_the_weights(q, k, v, u):
    w = F.silu(q @ k.mT)
    return w @ v, w @ u, w.square().mean()


@refuse("SCORES_ESCAPE", "POINTWISE_OP", **TWO)
def an_unknown_function_beside(q, k, v, u):
    s = q @ k.mT
    return torch.atan(s) @ v + F.relu(s) @ u
