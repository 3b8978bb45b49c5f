"""Effects: writes, hooks, autograd functions, aliases, modules, control flow."""

import torch
import torch.nn.functional as F


def leaves(*shapes, dtype=torch.float32):
    return tuple(torch.randn(*s, dtype=dtype).requires_grad_() for s in shapes)


def qkv(dtype=torch.float32):
    return leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), dtype=dtype)


def bf():
    return qkv(torch.bfloat16)


def qkvb():
    return leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (6, 7))


def qkvr():
    return (*qkv(), torch.randn(6, 7))


def fq():
    ones = torch.ones(1, dtype=torch.long)
    low, high, scale = torch.tensor([-1.0]), torch.tensor([1.0]), torch.tensor([0.1])
    return (*qkv(), ones, ones.clone(), low, high, scale, torch.zeros(1, dtype=torch.int))


# Calls that write into other arguments than the first.


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


def fused_sgd_changes_momentum(q, k, v, b, m):
    s = q @ k.mT
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
    return w @ v


def observer_changes_a_scale(q, k, v, on, fon, lo, hi, sc, zp):
    s = q @ k.mT
    w = torch.relu(s * sc)
    x = torch.fused_moving_avg_obs_fake_quant(
        q.detach(), on, fon, lo, hi, sc, zp, 0.5, 0, 255, -1, False, False
    )
    return w @ v + x.sum()


def dead_observer_of_scores(q, k, v, on, fon, lo, hi, sc, zp):
    s = q @ k.mT
    torch.fused_moving_avg_obs_fake_quant(s, on, fon, lo, hi, sc, zp, 0.5, 0, 255, -1, False, False)
    return torch.relu(s) @ v


def in_place_through_foreach(q, k, v):
    s = q @ k.mT
    torch._foreach_mul_([s], 2.0)
    return torch.relu(s) @ v


# Hooks.


def hook_on_keys(q, k, v):
    k2 = k * 2
    k2.register_hook(lambda g: g * 3)
    return torch.relu(q @ k2.mT) @ v


def hook_on_key_view(q, k, v):
    kt = k.mT
    kt.register_hook(lambda g: g * 3)
    return torch.relu(q @ kt) @ v


def hook_on_alias_of_key_view(q, k, v):
    kt = k.mT
    ka = kt.view(kt.shape)
    s = q @ ka
    kt.register_hook(lambda g: g * 3)
    return torch.relu(s) @ v


def hook_on_scores(q, k, v):
    s = q @ k.mT
    s.register_hook(lambda g: g * 3)
    return torch.relu(s) @ v


def hook_on_output(q, k, v):
    o = torch.relu(q @ k.mT) @ v
    o.register_hook(lambda g: g * 3)
    return o * 2


def retained_key_view(q, k, v):
    kt = k.mT
    kt.retain_grad()
    return (torch.relu(q @ kt) @ v, kt)


# Autograd functions.


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 5


def custom_function_on_scores(q, k, v):
    return torch.relu(Scale.apply(q @ k.mT)) @ v


def custom_function_on_key(q, k, v):
    return torch.relu(q @ Scale.apply(k).mT) @ v


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 7


def dirty_function_on_scores(q, k, v):
    s = q @ k.mT
    Dirty.apply(s)
    return torch.relu(s) @ v


# Scores that are written in place.


def scores_in_place_chain(q, k, v):
    s = q @ k.mT
    t = s.view(6, 6, 7)
    t.mul_(2)
    u = t.transpose(1, 2)
    u.add_(1)
    s.relu_()
    return s @ v


def scores_in_place_with_bias(q, k, v, b):
    s = q @ k.mT
    s += b
    s *= b.sigmoid()
    s.clamp_(min=0)
    return s @ v


def scores_saved_then_changed(q, k, v, b):
    s = q @ k.mT
    t = s * 1.0
    t.mul_(b)
    u = t + s
    return torch.relu(u) @ v


def scores_copy_then_original(q, k, v):
    s = q @ k.mT
    t = s.clone()
    s.mul_(2)
    return torch.relu(t) @ v


def scores_reshaped_then_changed(q, k, v):
    s = q @ k.mT
    t = s.reshape(2, 3, 42)
    s.mul_(2)
    return torch.relu(t.view(2, 3, 6, 7)) @ v


def scores_where_out(q, k, v):
    s = q @ k.mT
    with torch.no_grad():
        m = s > 0
    s = s.masked_fill_(~m, 0)
    return s @ v


def out_variant(q, k, v, t):
    with torch.no_grad():
        buf = torch.empty(2, 3, 6, 7)
        torch.matmul(q, k.mT, out=buf)
        return (torch.relu(buf) @ v, buf)


# Writes into operands and results.


def data_write_between(q, k, v):
    k2 = k * 1
    s = q @ k2.mT
    k2.data.mul_(2)
    return torch.relu(s) @ k2


def output_changed(q, k, v):
    o = torch.relu(q @ k.mT) @ v
    o.mul_(q.mean())
    o[0].zero_()
    o.transpose(1, 2).add_(1)
    return o


def item_scale(q, k, v, t):
    c = t.item()
    t.add_(1)
    return torch.relu(q @ k.mT * c) @ v


def scalar_tensor_scale(q, k, v, t):
    return torch.relu(q @ k.mT * t) @ v


# Overlapping memory, parts of complex numbers.


def overlapping_keys(q, k, v):
    ks = (
        torch.as_strided(k, (2, 3, 7, 8), (168, 56, 1, 3))
        if False
        else k[:, :, :1].expand(2, 3, 7, 8)
    )
    return torch.relu(q @ ks.mT) @ v


def unfolded_keys(q, k, v):
    x = k.reshape(2, 3, 56).unfold(-1, 8, 8)
    y = k.reshape(2, 3, 56).unfold(-1, 8, 5)[:, :, :7]
    return torch.relu(q @ y.mT) @ x


def complex_parts(q, k, v):
    return torch.relu(q.real @ k.conj().imag.mT) @ v.real


def negative_views(q, k, v):
    return torch.relu(q.conj().imag @ k.imag.mT) @ v.conj().imag


# Several regions that share operands.


def shared_regions(q, k, v):
    s = q @ k.mT
    return (torch.relu(s) @ v, torch.tanh(s) @ v)


def chained_regions(q, k, v):
    o = torch.relu(q @ k.mT) @ v
    o2 = torch.tanh(o @ k.mT) @ v
    return torch.silu(o2 @ o.mT) @ o if False else F.silu(o2 @ o.mT) @ o


def output_is_query_and_bias(q, k, v):
    o = torch.relu(q @ k.mT) @ v
    b = o.mean(-1, keepdim=True)
    return torch.tanh(o @ k.mT + b) @ v


def value_is_changed_scores_operand(q, k, v):
    k2 = k * 1
    s = q @ k2.mT
    w = torch.relu(s)
    o = w @ v
    v2 = v * 1
    v2 += 1
    return o @ v2.mT @ k


CASES = [
    # Calls that write into other arguments than the first.
    (fused_sgd_on_bias, lambda: (*qkv(), torch.randn(6, 7), torch.randn(6, 7))),
    (fused_sgd_changes_momentum, lambda: (*qkv(), torch.zeros(7), torch.ones(7))),
    (observer_changes_a_scale, fq),
    (dead_observer_of_scores, fq),
    (in_place_through_foreach, qkv),
    # Hooks.
    (hook_on_keys, qkv),
    (hook_on_key_view, qkv),
    (hook_on_alias_of_key_view, qkv),
    (hook_on_scores, qkv),
    (hook_on_output, qkv),
    (retained_key_view, qkv),
    # Autograd functions.
    (custom_function_on_scores, qkv),
    (custom_function_on_key, qkv),
    (dirty_function_on_scores, qkv),
    # Scores that are written in place.
    (scores_in_place_chain, qkv),
    (scores_in_place_with_bias, qkvb),
    (scores_saved_then_changed, qkvb),
    (scores_copy_then_original, qkv),
    (scores_reshaped_then_changed, qkv),
    (scores_where_out, qkv),
    (out_variant, lambda: (*qkv(), torch.tensor(0.5, requires_grad=True))),
    # Writes into operands and results.
    (data_write_between, qkv),
    (output_changed, qkv),
    (item_scale, lambda: (*qkv(), torch.tensor(0.5))),
    (scalar_tensor_scale, lambda: (*qkv(), torch.tensor(0.5, requires_grad=True))),
    # Overlapping memory, parts of complex numbers.
    (overlapping_keys, qkv),
    (unfolded_keys, qkv),
    (complex_parts, lambda: leaves((2, 6, 8), (2, 7, 8), (2, 7, 8), dtype=torch.complex64)),
    (negative_views, lambda: leaves((2, 6, 8), (2, 7, 8), (2, 7, 8), dtype=torch.complex64)),
    # Several regions that share operands.
    (shared_regions, qkv),
    (chained_regions, qkv),
    (output_is_query_and_bias, qkv),
    (value_is_changed_scores_operand, qkv),
]
