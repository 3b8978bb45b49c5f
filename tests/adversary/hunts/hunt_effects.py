"""Effects: writes, hooks, autograd functions, aliases, modules, control flow."""

import torch
import torch.nn.functional as F

from .rows import Programs, after, attended, leaves, nothing, of_scores, qkv32, scored

CASES = Programs()
case, table = CASES.case, CASES.table


def bf():
    return qkv32(torch.bfloat16)


def qkvb():
    return leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (6, 7))


def qkvr():
    return (*qkv32(), torch.randn(6, 7))


def fq():
    ones = torch.ones(1, dtype=torch.long)
    low, high, scale = torch.tensor([-1.0]), torch.tensor([1.0]), torch.tensor([0.1])
    return (*qkv32(), ones, ones.clone(), low, high, scale, torch.zeros(1, dtype=torch.int))


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 5


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 7


@case(lambda: (*qkv32(), torch.randn(6, 7), torch.randn(6, 7)))
def fused_sgd_on_bias(q, k, v, b, m):
    s = torch.relu(q @ k.mT + b)
    torch._fused_sgd_(
        [q.detach() * 1],
        [b.new_zeros(2, 3, 6, 8)],
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=0.1,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )
    return s @ v


@case(lambda: (*qkv32(), torch.zeros(7), torch.ones(7)), of=of_scores)
def fused_sgd_changes_momentum(s, b, m):
    w = torch.relu(s * m)
    torch._fused_sgd_(
        [b],
        [torch.ones(7)],
        [m],
        weight_decay=0.0,
        momentum=0.9,
        lr=0.1,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )
    return w


@case(qkv32)
def hook_on_keys(q, k, v):
    k2 = k * 2
    k2.register_hook(lambda g: g * 3)
    return torch.relu(q @ k2.mT) @ v


@case(qkv32)
def hook_on_key_view(q, k, v):
    kt = k.mT
    kt.register_hook(lambda g: g * 3)
    return torch.relu(q @ kt) @ v


@case(qkv32)
def hook_on_alias_of_key_view(q, k, v):
    kt = k.mT
    ka = kt.view(kt.shape)
    s = q @ ka
    kt.register_hook(lambda g: g * 3)
    return torch.relu(s) @ v


@case(qkv32)
def retained_key_view(q, k, v):
    kt = k.mT
    kt.retain_grad()
    return (torch.relu(q @ kt) @ v, kt)


table(
    qkv32,
    of=of_scores,
    in_place_through_foreach=after(lambda s: torch._foreach_mul_([s], 2.0), torch.relu),
    hook_on_scores=after(lambda s: s.register_hook(lambda g: g * 3), torch.relu),
    custom_function_on_scores=lambda s: torch.relu(Scale.apply(s)),
    dirty_function_on_scores=after(lambda s: Dirty.apply(s), torch.relu),
)


@case(qkv32, of=of_scores)
def scores_in_place_chain(s):
    t = s.view(6, 6, 7)
    t.mul_(2)
    u = t.transpose(1, 2)
    u.add_(1)
    s.relu_()
    return s


@case(qkvb, of=of_scores)
def scores_in_place_with_bias(s, b):
    s += b
    s *= b.sigmoid()
    s.clamp_(min=0)
    return s


@case(qkvb, of=of_scores)
def scores_saved_then_changed(s, b):
    t = s * 1.0
    t.mul_(b)
    u = t + s
    return torch.relu(u)


@case(qkv32, of=of_scores)
def scores_copy_then_original(s):
    t = s.clone()
    s.mul_(2)
    return torch.relu(t)


@case(qkv32, of=of_scores)
def scores_reshaped_then_changed(s):
    t = s.reshape(2, 3, 42)
    s.mul_(2)
    return torch.relu(t.view(2, 3, 6, 7))


@case(qkv32, of=of_scores)
def scores_where_out(s):
    with torch.no_grad():
        m = s > 0
    s = s.masked_fill_(~m, 0)
    return s


@case(lambda: (*qkv32(), torch.tensor(0.5, requires_grad=True)))
def out_variant(q, k, v, t):
    with torch.no_grad():
        buf = torch.empty(2, 3, 6, 7)
        torch.matmul(q, k.mT, out=buf)
        return (torch.relu(buf) @ v, buf)


@case(qkv32)
def data_write_between(q, k, v):
    k2 = k * 1
    s = q @ k2.mT
    k2.data.mul_(2)
    return torch.relu(s) @ k2


@case(qkv32)
def output_changed(q, k, v):
    o = torch.relu(q @ k.mT) @ v
    o.mul_(q.mean())
    o[0].zero_()
    o.transpose(1, 2).add_(1)
    return o


@case(lambda: (*qkv32(), torch.tensor(0.5)))
def item_scale(q, k, v, t):
    c = t.item()
    t.add_(1)
    return torch.relu(q @ k.mT * c) @ v


table(
    nothing,
    of=of_scores,
    dead_observer_of_scores=(
        after(
            lambda s, on, fon, lo, hi, sc, zp: torch.fused_moving_avg_obs_fake_quant(
                s, on, fon, lo, hi, sc, zp, 0.5, 0, 255, -1, False, False
            ),
            lambda s, on, fon, lo, hi, sc, zp: torch.relu(s),
        ),
        fq,
    ),
    scalar_tensor_scale=(
        lambda s, t: torch.relu(s * t),
        lambda: (*qkv32(), torch.tensor(0.5, requires_grad=True)),
    ),
)


table(
    nothing,
    observer_changes_a_scale=(
        lambda q, k, v, on, fon, lo, hi, sc, zp: (
            torch.relu((q @ k.mT) * sc) @ v
            + torch.fused_moving_avg_obs_fake_quant(
                q.detach(), on, fon, lo, hi, sc, zp, 0.5, 0, 255, -1, False, False
            ).sum()
        ),
        fq,
    ),
    custom_function_on_key=(lambda q, k, v: torch.relu(q @ Scale.apply(k).mT) @ v, qkv32),
    overlapping_keys=(
        lambda q, k, v: (
            torch.relu(
                q
                @ (
                    torch.as_strided(k, (2, 3, 7, 8), (168, 56, 1, 3))
                    if False
                    else k[:, :, :1].expand(2, 3, 7, 8)
                ).mT
            )
            @ v
        ),
        qkv32,
    ),
    unfolded_keys=(
        lambda q, k, v: (
            torch.relu(q @ k.reshape(2, 3, 56).unfold(-1, 8, 5)[:, :, :7].mT)
            @ k.reshape(2, 3, 56).unfold(-1, 8, 8)
        ),
        qkv32,
    ),
    complex_parts=(
        lambda q, k, v: torch.relu(q.real @ k.conj().imag.mT) @ v.real,
        lambda: leaves((2, 6, 8), (2, 7, 8), (2, 7, 8), dtype=torch.complex64),
    ),
    negative_views=(
        lambda q, k, v: torch.relu(q.conj().imag @ k.imag.mT) @ v.conj().imag,
        lambda: leaves((2, 6, 8), (2, 7, 8), (2, 7, 8), dtype=torch.complex64),
    ),
    shared_regions=(scored(lambda s, v: (torch.relu(s) @ v, torch.tanh(s) @ v)), qkv32),
    hook_on_output=(
        attended(torch.relu)(after(lambda o: o.register_hook(lambda g: g * 3), lambda o: o * 2)),
        qkv32,
    ),
)


@case(qkv32)
def chained_regions(q, k, v):
    o = torch.relu(q @ k.mT) @ v
    o2 = torch.tanh(o @ k.mT) @ v
    return torch.silu(o2 @ o.mT) @ o if False else F.silu(o2 @ o.mT) @ o


@case(qkv32)
def output_is_query_and_bias(q, k, v):
    o = torch.relu(q @ k.mT) @ v
    b = o.mean(-1, keepdim=True)
    return torch.tanh(o @ k.mT + b) @ v


@case(qkv32)
def value_is_changed_scores_operand(q, k, v):
    k2 = k * 1
    s = q @ k2.mT
    w = torch.relu(s)
    o = w @ v
    v2 = v * 1
    v2 += 1
    return o @ v2.mT @ k
