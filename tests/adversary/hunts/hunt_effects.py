"""Effects: writes, hooks, autograd functions, aliases, modules, control flow."""

import torch
import torch.nn.functional as F

from .rows import Programs, after, leaves, normal, nothing, of_scores, plus, qkv32, values

CASES = Programs()
case, table = CASES.case, CASES.table
relu = torch.relu
with_bias = lambda: leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (6, 7))
with_number = plus(qkv32, values(0.5))
complexes = normal((2, 6, 8), (2, 7, 8), (2, 7, 8), dtype=torch.complex64)


def observed():
    ones = torch.ones(1, dtype=torch.long)
    low, high, scale = torch.tensor([-1.0]), torch.tensor([1.0]), torch.tensor([0.1])
    return (*qkv32(), ones, ones.clone(), low, high, scale, torch.zeros(1, dtype=torch.int))


def triple(g):
    return g * 3


# Calls that write into other arguments than the first


def fused_sgd(parameters, gradients, momenta, momentum):
    torch._fused_sgd_(
        parameters, gradients, momenta, weight_decay=0.0, momentum=momentum, lr=0.1, dampening=0.0,
        nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip


def observe(x, *operands):
    return torch.fused_moving_avg_obs_fake_quant(x, *operands, 0.5, 0, 255, -1, False, False)


@case(lambda: (*qkv32(), torch.randn(6, 7)))
def fused_sgd_on_bias(q, k, v, b):
    s = relu(q @ k.mT + b)
    fused_sgd([q.detach() * 1], [b.new_zeros(2, 3, 6, 8)], [], 0.0)
    return s @ v


@case(lambda: (*qkv32(), torch.zeros(7), torch.ones(7)), of=of_scores)
def fused_sgd_changes_momentum(s, b, m):
    w = relu(s * m)
    fused_sgd([b], [torch.ones(7)], [m], 0.9)
    return w


# Hooks and functions of autograd's


@case(qkv32)
def hook_on_alias_of_key_view(q, k, v):
    kt = k.mT
    s = q @ kt.view(kt.shape)
    kt.register_hook(triple)
    return relu(s) @ v


table(
    qkv32,
    of=of_scores,
    in_place_through_foreach=after(lambda s: torch._foreach_mul_([s], 2.0), relu),
)


# Writes to the scores, to operands and to the output


@case(with_bias, of=of_scores)
def scores_in_place_with_bias(s, b):
    s += b
    s *= b.sigmoid()
    s.clamp_(min=0)
    return s


@case(with_bias, of=of_scores)
def scores_saved_then_changed(s, b):
    t = s * 1.0
    t.mul_(b)
    return relu(t + s)


@case(qkv32, of=of_scores)
def scores_reshaped_then_changed(s):
    t = s.reshape(2, 3, 42)
    s.mul_(2)
    return relu(t.view(2, 3, 6, 7))


@case(qkv32, of=of_scores)
def scores_where_out(s):
    with torch.no_grad():
        m = s > 0
    return s.masked_fill_(~m, 0)


@case(qkv32)
def out_variant(q, k, v):
    with torch.no_grad():
        buf = torch.empty(2, 3, 6, 7)
        torch.matmul(q, k.mT, out=buf)
        return relu(buf) @ v, buf


@case(with_number)
def item_scale(q, k, v, t):
    c = t.item()
    t.add_(1)
    return relu(q @ k.mT * c) @ v


# Overlapping memory, parts of complex numbers, several regions that share operands


table(
    nothing,
    observer_changes_a_scale=(
        lambda q, k, v, *operands: (
            relu((q @ k.mT) * operands[4]) @ v + observe(q.detach(), *operands).sum()
        ),
        observed,
    ),
    dead_observer_of_scores=(of_scores(after(observe, lambda s, *operands: relu(s))), observed),
    negative_views=(lambda q, k, v: relu(q.conj().imag @ k.imag.mT) @ v.conj().imag, complexes),
)


@case(qkv32)
def chained_regions(q, k, v):
    o = relu(q @ k.mT) @ v
    o2 = torch.tanh(o @ k.mT) @ v
    return F.silu(o2 @ o.mT) @ o


@case(qkv32)
def output_is_query_and_bias(q, k, v):
    o = relu(q @ k.mT) @ v
    b = o.mean(-1, keepdim=True)
    return torch.tanh(o @ k.mT + b) @ v
