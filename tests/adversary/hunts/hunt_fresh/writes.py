"""Writes in place: to weights, operands, inputs, outputs and what shares their memory."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, after, normal, nothing, plus
from .given import T, attended, fp64, frozen, scored, weighted

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table
MASK = lambda: (torch.rand(5, 5) > 0.4,)


@case(frozen, of=scored)
def inplace_on_weights(w, v):
    w.sigmoid_()
    w.mul_(0.5)
    return w @ v


table(
    frozen,
    of=weighted(torch.tanh),
    inplace_on_weight_view=after(lambda w, v: w[..., 0].zero_(), lambda w, v: w @ v),
    inplace_diag_fill=after(
        lambda w, v: torch.diagonal(w, dim1=-2, dim2=-1).fill_(0.0), lambda w, v: w @ v
    ),
)


@case(fp64)
def value_written_after(q, k, v):
    u = v * 1.0
    o = F.silu(q @ T(k)) @ u
    u2 = u.detach()
    return o, u2 + 1


@case(frozen)
def key_written_between(q, k, v):
    w = F.silu(q @ T(k))
    k.mul_(2)
    return w @ v


@case(frozen)
def key_view_written_between(q, k, v):
    kt = T(k)
    k[..., 0, :].zero_()
    w = F.silu(q @ kt)
    k.add_(1)
    return w @ v


@case(frozen)
def query_is_output_target(q, k, v):
    w = F.silu(q @ T(k))
    q.copy_(w @ v)
    return q


@case(frozen, of=weighted(F.silu))
def matmul_out_value(w, v):
    o = torch.empty_like(v)
    torch.matmul(w, v, out=o)
    return o


shared_storage = normal((2, 2, 5, 12), grad=False)


@case(shared_storage)
def chunks_of_arg_written(x):
    q, k, v = x.chunk(3, -1)
    w = F.silu(q @ T(k))
    x[..., 8:].mul_(3.0)
    return w @ v


@case(shared_storage)
def chunks_of_arg_written_k(x):
    q, k, v = x.chunk(3, -1)
    w = F.silu(q @ T(k))
    k.zero_()
    return w @ v, x


@case(plus(frozen, MASK))
def mask_written_between(q, k, v, m):
    w = F.silu(q @ T(k)) * m
    m.logical_not_()
    o = w @ v
    return o


@case(fp64, of=attended(F.silu))
def output_written_after(o):
    p = o.transpose(1, 2)
    p.add_(1)
    return o, p.reshape(2, 5, 8)


table(
    fp64,
    of=attended(F.silu),
    inplace_on_output_view=after(lambda o: o[:, 0].mul_(2), lambda o: o),
    output_detached_written=after(lambda o: o.detach().mul_(2), lambda o: o),
    output_data_written=after(lambda o: o.data.zero_(), lambda o: o),
)


@case(fp64)
def operand_data_written(q, k, v):
    u = v.clone()
    o = torch.tanh(q @ T(k)) @ u
    u.data.zero_()
    return o


@case(fp64)
def operand_detached_written(q, k, v):
    u = v * 2
    o = torch.tanh(q @ T(k)) @ u
    u.detach_()
    return o


@case(fp64)
def view_as_real(q, k, v):
    c = torch.view_as_complex(q.reshape(2, 2, 5, 2, 2)) * torch.polar(
        torch.ones(5, 2, dtype=D64), torch.arange(10.0, dtype=D64).view(5, 2)
    )
    q = torch.view_as_real(c).flatten(-2)
    return F.silu(q @ T(k)) @ v


@case(fp64)
def out_stride(q, k, v):
    o = (F.silu(q @ T(k)) @ v).transpose(1, 2)
    return o.stride(), o.is_contiguous(), o.contiguous().view(2, 5, 8)


@case(frozen)
def same_object_mutated(q, k, v):
    a = q.clone()
    b = a.view(2, 2, 20)
    w = F.silu(a @ T(k))
    b.zero_()
    return w @ (v + a)


@case(fp64)
def bias_ema_write_after(q, k, v):
    b = torch.zeros(5, 5, dtype=D64)
    o = torch.sigmoid(q @ T(k) + b) @ v
    b += 1
    return o, b


table(
    nothing,
    requires_grad_inside=(lambda q, k, v: torch.tanh(q @ T(k)) @ v.detach().requires_grad_(), fp64),
    returns_input_views=(lambda q, k, v: (torch.tanh(q @ T(k)) @ v, q, T(k), v.detach()), fp64),
    unused_scores_hooked=(scored(lambda s, v: (torch.tanh(s) @ v, s.shape[0], s.numel())), fp64),
    version_counter=(attended(F.silu)(lambda o: (o, o._version, o.is_leaf, o.requires_grad)), fp64),
    detached_output_alias=(attended(torch.tanh)(lambda o: (o, o.detach(), o.view(-1))), fp64),
    value_written_between=(
        weighted(F.silu)(after(lambda w, v: v.mul_(2), lambda w, v: w @ v)),
        frozen,
    ),
)


@case(frozen)
def input_iadd_output(q, k, v):
    q += torch.tanh(q @ T(k)) @ v
    return q


@case(frozen)
def out_kwarg_input(q, k, v):
    torch.add(torch.tanh(q @ T(k)) @ v, 1, out=q)
    return q


@case(frozen)
def einsum_into_slice(q, k, v):
    q[:, 0] = (torch.tanh(q @ T(k)) @ v)[:, 1]
    return q


@case(frozen)
def swapped_in_place(q, k, v):
    w = torch.tanh(q @ T(k))
    q.copy_(v)
    v.copy_(w @ q)
    return w.sum() * 0 + v


@case(plus(fp64, normal((5, 5))))
def made_bias_returned_written(q, k, v, b):
    c = b * 2
    o = torch.sigmoid(q @ T(k) + c) @ v
    torch._dynamo.graph_break()
    c.data.mul_(0.1)
    return o


@case(plus(fp64, normal((5, 5))))
def made_bias_written_after_break(q, k, v, b):
    c = b * 2
    o = torch.sigmoid(q @ T(k) + c) @ v
    torch._dynamo.graph_break()
    c.mul_(0.1)
    return o, c


@case(plus(fp64, normal((5, 5))))
def bias_written_after_break(q, k, v, b):
    o = torch.sigmoid(q @ T(k) + b) @ v
    torch._dynamo.graph_break()
    with torch.no_grad():
        b.mul_(0.1)
    return o


@case(frozen)
def output_into_input(q, k, v):
    v.copy_(torch.tanh(q @ T(k)) @ v)
    return v * 2
