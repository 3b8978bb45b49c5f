"""Checkpoints, vmap, cond and its like, autocast, custom operators, blocks of keys."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

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
    square,
    values,
)

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


table(
    ikv(),
    checkpoint_all=lambda q, k, v: checkpoint(
        lambda q, k, v: F.silu(q @ k.mT) @ v, q, k, v, use_reentrant=False
    ),
    vmap_over_batch=lambda q, k, v: torch.vmap(lambda q, k, v: F.silu(q @ k.mT) @ v)(q, k, v),
    vmap_over_heads_out=lambda q, k, v: torch.vmap(
        lambda q, k, v: F.silu(q @ k.mT) @ v, in_dims=1, out_dims=-1
    )(q, k, v),
    cond_of_attention=(
        lambda q, k, v, flag: torch.cond(
            flag,
            lambda q, k, v: F.silu(q @ k.mT) @ v,
            lambda q, k, v: F.relu(q @ k.mT) @ v,
            (q, k, v),
        ),
        values(True),
    ),
    custom_op_on_operands=lambda q, k, v: F.silu(custom(q) @ k.mT) @ custom(v),
    checkpoint_detached_query=lambda q, k, v: checkpoint(
        lambda q, k, v: F.silu(q.detach() @ k.mT) @ v, q, k, v, use_reentrant=False
    ),
    checkpoint_scores_only=lambda q, k, v: (
        checkpoint(lambda q, k: F.silu(q @ k.mT), q, k, use_reentrant=False) @ v
    ),
    checkpoint_second_only=scored(
        lambda s, v: checkpoint(lambda s, v: F.silu(s) @ v, s, v, use_reentrant=False)
    ),
    output_is_a_view_of_the_result=attended(F.silu)(lambda o: (o, o[0], o.mT, o.view(-1))),
)


@case(ikv())
def checkpoint_with_closure_mask(q, k, v):
    m = torch.arange(5)[:, None] >= torch.arange(7)

    def inner(q, k, v):
        return (F.silu(q @ k.mT) * m) @ v

    return checkpoint(inner, q, k, v, use_reentrant=False) * 2 + checkpoint(
        inner, q, k, v, use_reentrant=False
    )


@case(ikv())
def checkpoint_returns_scores(q, k, v):
    def inner(q, k, v):
        s = q @ k.mT
        return F.silu(s) @ v, s

    return checkpoint(inner, q, k, v, use_reentrant=False)


@case(ikv())
def checkpoint_writes_inside(q, k, v):
    def inner(q, k, v):
        s = q @ k.mT
        s.relu_()
        o = s @ v
        o.mul_(2)
        return o

    return checkpoint(inner, q, k, v, use_reentrant=False)


table(
    nothing,
    func_grad=(
        lambda q, k, v: torch.func.grad(lambda q: (F.silu(q @ k.mT) @ v).sum())(q),
        normal((2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3), grad=False),
    ),
    func_jvp=(
        lambda q, k, v: torch.func.jvp(lambda q: F.silu(q @ k.mT) @ v, (q,), (torch.ones_like(q),)),
        normal((2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3), grad=False),
    ),
)


@case(normal((2, 5, 4), (2, 7, 4), (2, 7, 4), grad=False))
def while_loop_of_attention(q, k, v):
    def body(i, x):
        return i + 1, torch.sigmoid(x @ k.mT) @ v

    return torch._higher_order_ops.while_loop(lambda i, x: i < 3, body, (torch.tensor(0), q))


@case(normal((2, 5, 4), (2, 7, 4), (2, 7, 4), grad=False))
def map_of_attention(q, k, v):
    from torch._higher_order_ops.map import map as hop_map

    return hop_map(lambda q: torch.sigmoid(q @ k[0].mT) @ v[0], q)


@case(ikv())
def autocast_first_only(q, k, v):
    q, k, v = q.float(), k.float(), v.float()
    with torch.autocast("cpu", torch.bfloat16):
        s = q @ k.mT
    return F.silu(s.float()) @ v


@case(ikv())
def autocast_all(q, k, v):
    q, k, v = q.float(), k.float(), v.float()
    with torch.autocast("cpu", torch.bfloat16):
        return F.silu(q @ k.mT) @ v


@case(ikv())
def autocast_disabled_inside(q, k, v):
    q, k, v = q.float(), k.float(), v.float()
    with torch.autocast("cpu", torch.bfloat16):
        s = q @ k.mT
        with torch.autocast("cpu", enabled=False):
            w = F.silu(s.float() / 3)
        return w @ v


@case(ikv())
def autocast_second_only(q, k, v):
    q, k, v = q.float(), k.float(), v.float()
    s = q @ k.mT
    with torch.autocast("cpu", torch.bfloat16):
        return F.silu(s) @ v


@case(plus(ikv(), normal((5, 7), dtype=torch.float32)))
def autocast_with_bias_and_mask(q, k, v, bias):
    q, k, v = q.float(), k.float(), v.float()
    with torch.autocast("cpu", torch.bfloat16):
        s = q @ k.mT
        s = s + bias
        s = torch.where(torch.ones(5, 7, dtype=torch.bool).tril(), s, float("-inf"))
        return torch.sigmoid(s) @ v


@torch.library.custom_op("hunt_third::relu", mutates_args=())
def custom(x: torch.Tensor) -> torch.Tensor:
    return x.relu()


custom.register_fake(lambda x: torch.empty_like(x))


custom.register_autograd(lambda ctx, g: g * 2, setup_context=lambda ctx, inputs, output: None)


@case(ikv())
def autograd_grad_inside(q, k, v):
    o = F.silu(q @ k.mT) @ v
    if not q.requires_grad:
        return o
    (g,) = torch.autograd.grad(o.sum(), q)
    return o.detach() + g.sum()


@case(ikv(), of=scored)
def autograd_grad_of_scores(s, v):
    o = F.silu(s) @ v
    if not s.requires_grad:
        return o
    (g,) = torch.autograd.grad(o.sum(), s)
    return o.detach() + g.sum()


@case(plus(ikv(), lambda: (torch.zeros(7, dtype=D64),)))
def checkpoint_of_buffer_update(q, k, v, bias):
    def inner(q, k, v):
        return F.silu(q @ k.mT + bias) @ v

    return checkpoint(inner, q, k, v, use_reentrant=False)


@case(ikv())
def checkpoint_with_autocast(q, k, v):
    def inner(q, k, v):
        with torch.autocast("cpu", enabled=False):
            return F.silu(q @ k.mT) @ v

    return checkpoint(inner, q, k, v, use_reentrant=False)


@case(ikv())
def checkpoint_nested(q, k, v):
    def inner(q, k, v):
        return checkpoint(lambda q, k, v: F.silu(q @ k.mT) @ v, q, k, v, use_reentrant=False).tanh()

    return checkpoint(inner, q, k, v, use_reentrant=False)


@case(ikv())
def detach_in_place_of_query(q, k, v):
    p = q * 2
    s = p @ k.mT
    p.detach_()
    return F.silu(s) @ v + p.sum()


table(
    nothing,
    of=of_scores,
    cond_activation=(
        lambda s, flag: torch.cond(flag, lambda s: s.relu(), lambda s: s.sigmoid(), (s,)),
        plus(normal((2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3), grad=False), values(True)),
    ),
    custom_op_between=(lambda s: custom(s), ikv()),
)


@case(ikv())
def set_data_of_query(q, k, v):
    p = q.clone()
    s = p @ k.mT
    p.data = k[:, :, :5]
    return F.silu(s) @ v


@case(ikv())
def resized_mask(q, k, v):
    m = torch.ones(3, dtype=q.dtype)
    m = m.new_ones(5, 7)
    m.t_()
    return (F.silu(q @ k.mT) * m.T) @ v


@case(ikv())
def enumerate_over_heads_with_lists(q, k, v):
    out = []
    for a, b, c in zip(q.unbind(1), k.unbind(1), v.unbind(1)):
        out.append(torch.tanh(a @ b.mT) @ c)
    return torch.stack(out[::-1], 1)


@case(ikv())
def accumulated_over_key_blocks(q, k, v):
    o = torch.zeros(2, 2, 5, 3, dtype=q.dtype)
    for j in range(0, 7, 2):
        o = o + F.silu(q @ k[:, :, j : j + 2].mT) @ v[:, :, j : j + 2]
    return o


@case(ikv())
def accumulated_in_place_over_blocks(q, k, v):
    o = torch.zeros(2, 2, 5, 3, dtype=q.dtype)
    for j in range(0, 7, 3):
        o[:, :, : j + 2] += F.silu(q[:, :, : j + 2] @ k[:, :, j : j + 3].mT) @ v[:, :, j : j + 3]
    return o


@case(ikv())
def state_is_carried(q, k, v):
    state = torch.zeros(2, 2, 4, 3, dtype=q.dtype)
    out = []
    for t in range(5):
        state = state + k[:, :, t, :, None] * v[:, :, t, None]
        out.append(q[:, :, t, None] @ state)
    return torch.cat(out, 2)


@case(ikv())
def scores_kept_in_dict(q, k, v):
    cache = {}
    cache["s"] = q @ k.mT
    cache["w"] = cache["s"].relu()
    return {"out": cache["w"] @ v, "n": cache["s"].dim()}


@case(ikv())
def as_strided_of_the_result(q, k, v):
    o = (F.silu(q @ k.mT) @ v).transpose(1, 2)
    return o.as_strided((3, 4), (4, 1), 2), o.stride(), o.is_contiguous()


@case(
    lambda: tuple(
        torch.randn(2, 5, 2, 4, dtype=D64).transpose(1, 2).detach().requires_grad_()
        for _ in range(3)
    )
)
def as_strided_of_transposed(q, k, v):
    o = F.silu(q @ k.mT) @ v
    return (
        o.as_strided((3, 4), (4, 1), 2),
        o.stride(),
        torch.einsum("bhij,bhjc->bihc", F.silu(q @ k.mT), v).stride(),
    )


@case(
    lambda: tuple(
        torch.randn(2, 5, 2, 4, dtype=D64).transpose(1, 2).detach().requires_grad_()
        for _ in range(3)
    )
)
def view_of_einsum_result(q, k, v):
    o = torch.einsum("bhij,bhjc->bihc", F.silu(torch.einsum("bhid,bhjd->bhij", q, k)), v)
    return o.as_strided((3, 4), (5, 1), 1), o.permute(2, 0, 1, 3).as_strided((2, 2), (3, 1))


@case(ikv(), of=attended(F.silu))
def contiguous_flag_decides(o):
    t = o.mT
    u = t.contiguous()
    u.mul_(2)
    return o + u.mT, t


@case(square(), of=attended(F.silu))
def reshape_aliases_the_result(o):
    p = o.reshape(2, 12, 4)
    p += 1
    return o
