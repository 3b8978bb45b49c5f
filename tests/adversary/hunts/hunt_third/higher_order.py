"""Checkpoints, vmap, cond and its like, autocast, custom operators, blocks of keys."""

from functools import partial

import torch
import torch.nn.functional as F
import torch.utils.checkpoint

from ..rows import (
    D64,
    Programs,
    attended,
    ikv,
    normal,
    nothing,
    of_scores,
    plus,
    scored,
    values,
)

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table
checkpoint = partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
frozen = normal((2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3), grad=False)
batches = normal((2, 5, 4), (2, 7, 4), (2, 7, 4), grad=False)
BIAS = lambda: (torch.zeros(7, dtype=D64),)


def silu(q, k, v):
    return F.silu(q @ k.mT) @ v


@torch.library.custom_op("hunt_third::relu", mutates_args=())
def custom(x: torch.Tensor) -> torch.Tensor:
    return x.relu()


custom.register_fake(torch.empty_like)
custom.register_autograd(lambda ctx, g: g * 2, setup_context=lambda ctx, inputs, output: None)


def in_fp32(f):
    """The program that is `f` of the operands in fp32."""
    return lambda q, k, v, *more: f(q.float(), k.float(), v.float(), *more)


# Checkpoints


table(
    ikv(),
    checkpoint_second_only=scored(lambda s, v: checkpoint(lambda s, v: F.silu(s) @ v, s, v)),
    checkpoint_returns_scores=lambda q, k, v: checkpoint(
        scored(lambda s, v: (F.silu(s) @ v, s)), q, k, v
    ),
    checkpoint_nested=lambda q, k, v: checkpoint(
        lambda *qkv: checkpoint(silu, *qkv).tanh(), q, k, v
    ),
    checkpoint_of_buffer_update=(
        lambda q, k, v, bias: checkpoint(lambda q, k, v: F.silu(q @ k.mT + bias) @ v, q, k, v),
        BIAS,
    ),
)


@case(ikv())
def checkpoint_with_closure_mask(q, k, v):
    m = torch.arange(5)[:, None] >= torch.arange(7)
    inner = of_scores(lambda s: F.silu(s) * m)
    return checkpoint(inner, q, k, v) * 2 + checkpoint(inner, q, k, v)


@case(ikv())
def checkpoint_writes_inside(q, k, v):
    def inner(q, k, v):
        s = q @ k.mT
        s.relu_()
        o = s @ v
        o.mul_(2)
        return o

    return checkpoint(inner, q, k, v)


# Transforms, conditions and loops


table(
    nothing,
    func_grad=(lambda q, k, v: torch.func.grad(lambda q: silu(q, k, v).sum())(q), frozen),
    func_jvp=(
        lambda q, k, v: torch.func.jvp(lambda q: silu(q, k, v), (q,), (torch.ones_like(q),)),
        frozen,
    ),
    cond_of_attention=(
        lambda q, k, v, flag: torch.cond(flag, silu, of_scores(F.relu), (q, k, v)),
        ikv(),
        values(True),
    ),
    cond_activation=(
        of_scores(
            lambda s, flag: torch.cond(flag, lambda s: s.relu(), lambda s: s.sigmoid(), (s,))
        ),
        frozen,
        values(True),
    ),
)


@case(batches)
def while_loop_of_attention(q, k, v):
    def body(i, x):
        return i + 1, torch.sigmoid(x @ k.mT) @ v

    return torch._higher_order_ops.while_loop(lambda i, x: i < 3, body, (torch.tensor(0), q))


@case(batches)
def map_of_attention(q, k, v):
    from torch._higher_order_ops.map import map as hop_map

    return hop_map(lambda q: torch.sigmoid(q @ k[0].mT) @ v[0], q)


# Autocast


@case(ikv(), of=in_fp32)
def autocast_disabled_inside(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        s = q @ k.mT
        with torch.autocast("cpu", enabled=False):
            w = F.silu(s.float() / 3)
        return w @ v


@case(plus(ikv(), normal((5, 7), dtype=torch.float32)), of=in_fp32)
def autocast_with_bias_and_mask(q, k, v, bias):
    with torch.autocast("cpu", torch.bfloat16):
        s = q @ k.mT + bias
        s = torch.where(torch.ones(5, 7, dtype=torch.bool).tril(), s, float("-inf"))
        return torch.sigmoid(s) @ v


# Custom operators, and gradients asked for inside


table(
    ikv(),
    custom_op_on_operands=lambda q, k, v: silu(custom(q), k, custom(v)),
    custom_op_between=of_scores(custom),
)


# Writes to operands, loops over heads and blocks, and views of the result


@case(ikv())
def detach_in_place_of_query(q, k, v):
    p = q * 2
    s = p @ k.mT
    p.detach_()
    return F.silu(s) @ v + p.sum()


@case(ikv())
def set_data_of_query(q, k, v):
    p = q.clone()
    s = p @ k.mT
    p.data = k[:, :, :5]
    return F.silu(s) @ v


@case(ikv(), of=of_scores)
def resized_mask(s):
    m = s.new_ones(5, 7)
    m.t_()
    return F.silu(s) * m.T


@case(ikv())
def accumulated_over_key_blocks(q, k, v):
    o = torch.zeros(2, 2, 5, 3, dtype=q.dtype)
    for j in range(0, 7, 2):
        o = o + silu(q, k[:, :, j : j + 2], v[:, :, j : j + 2])
    return o


@case(ikv())
def accumulated_in_place_over_blocks(q, k, v):
    o = torch.zeros(2, 2, 5, 3, dtype=q.dtype)
    for j in range(0, 7, 3):
        o[:, :, : j + 2] += silu(q[:, :, : j + 2], k[:, :, j : j + 3], v[:, :, j : j + 3])
    return o


@case(ikv())
def state_is_carried(q, k, v):
    state = torch.zeros(2, 2, 4, 3, dtype=q.dtype)
    out = []
    for t in range(5):
        state = state + k[:, :, t, :, None] * v[:, :, t, None]
        out.append(q[:, :, t, None] @ state)
    return torch.cat(out, 2)


@case(ikv(), of=attended(F.silu))
def contiguous_flag_decides(o):
    u = o.mT.contiguous()
    u.mul_(2)
    return o + u.mT, o.mT
