"""Writes in place, calls that write elsewhere, aliases; hooks and random numbers."""

import torch
import torch.nn.functional as F

from .rows import (
    D64,
    Programs,
    after,
    ikv,
    leaves,
    normal,
    nothing,
    of_scores,
    plus,
    put,
    qkv,
    qkv32,
    scored,
    values,
    weighted,
)

CASES, MORE = Programs(), Programs()


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


@CASES.case(lambda: (*qkv32(), torch.randn(6, 7)))
def fused_sgd_on_bias(q, k, v, b):
    s = relu(q @ k.mT + b)
    fused_sgd([q.detach() * 1], [b.new_zeros(2, 3, 6, 8)], [], 0.0)
    return s @ v


@CASES.case(lambda: (*qkv32(), torch.zeros(7), torch.ones(7)), of=of_scores)
def fused_sgd_changes_momentum(s, b, m):
    w = relu(s * m)
    fused_sgd([b], [torch.ones(7)], [m], 0.9)
    return w


# Hooks and functions of autograd's


@CASES.case(qkv32)
def hook_on_alias_of_key_view(q, k, v):
    kt = k.mT
    s = q @ kt.view(kt.shape)
    kt.register_hook(triple)
    return relu(s) @ v


CASES.table(
    qkv32,
    of=of_scores,
    in_place_through_foreach=after(lambda s: torch._foreach_mul_([s], 2.0), relu),
)


# Writes to the scores, to operands and to the output


@CASES.case(with_bias, of=of_scores)
def scores_in_place_with_bias(s, b):
    s += b
    s *= b.sigmoid()
    s.clamp_(min=0)
    return s


@CASES.case(with_bias, of=of_scores)
def scores_saved_then_changed(s, b):
    t = s * 1.0
    t.mul_(b)
    return relu(t + s)


@CASES.case(qkv32, of=of_scores)
def scores_reshaped_then_changed(s):
    t = s.reshape(2, 3, 42)
    s.mul_(2)
    return relu(t.view(2, 3, 6, 7))


@CASES.case(qkv32, of=of_scores)
def scores_where_out(s):
    with torch.no_grad():
        m = s > 0
    return s.masked_fill_(~m, 0)


@CASES.case(qkv32)
def out_variant(q, k, v):
    with torch.no_grad():
        buf = torch.empty(2, 3, 6, 7)
        torch.matmul(q, k.mT, out=buf)
        return relu(buf) @ v, buf


@CASES.case(with_number)
def item_scale(q, k, v, t):
    c = t.item()
    t.add_(1)
    return relu(q @ k.mT * c) @ v


# Overlapping memory, parts of complex numbers, several regions that share operands


CASES.table(
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


@CASES.case(qkv32)
def chained_regions(q, k, v):
    o = relu(q @ k.mT) @ v
    o2 = torch.tanh(o @ k.mT) @ v
    return F.silu(o2 @ o.mT) @ o


@CASES.case(qkv32)
def output_is_query_and_bias(q, k, v):
    o = relu(q @ k.mT) @ v
    b = o.mean(-1, keepdim=True)
    return torch.tanh(o @ k.mT + b) @ v


# Random numbers: what a region draws, or somebody beside it, is drawn all the same.


def drawing(weights):
    """The program with these weights, and a draw after it."""
    return scored(lambda s, v: (weights(s) @ v, torch.rand(3)))


@CASES.case(qkv32, of=drawing)
def random_overwritten(s):
    w = torch.empty_like(s).uniform_()
    w.copy_(relu(s))
    return w


CASES.table(
    qkv32,
    of=lambda change: drawing(after(change, relu)),
    dead_sdpa=lambda s: F.scaled_dot_product_attention(s, s, s, dropout_p=0.5),
    dead_gamma=lambda s: torch._standard_gamma(s.detach().abs() + 1),
    dead_binomial=lambda s: torch.binomial(s.detach().abs().round() + 1, torch.full_like(s, 0.5)),
    dead_rand_like=torch.rand_like,
    dead_dirichlet=lambda s: torch._sample_dirichlet(s.detach().abs() + 1),
    dead_fractional_pool=lambda s: F.fractional_max_pool2d(s, 2, output_size=(3, 3)),
)
CASES.table(
    qkv32,
    of=drawing,
    random_bernoulli_zeroed=lambda s: relu(s) + torch.bernoulli(s.detach().sigmoid()).zero_(),
    random_zeros_like=lambda s: relu(s) + torch.zeros_like(F.dropout(s, 0.5)),
    random_shape_only=lambda s: relu(s).view(torch.rand_like(s).shape),
    random_new_full=lambda s: relu(s) * torch.rand_like(s).new_full(s.shape, 0.5),
    random_type_as=lambda s: relu(s).type_as(torch.rand_like(s)),
)


# More writes

MORE.table(
    ikv(),
    of=of_scores,
    write_7=after(
        lambda s: s.index_put_(
            (torch.tensor([0, 0]),), torch.ones((), dtype=s.dtype), accumulate=True
        ),
        F.silu,
    ),
    write_34=after(lambda s: s.unsqueeze_(0).squeeze_(0), F.silu),
    write_43=after(lambda s: s.index_fill_(-1, torch.tensor([1, 3]), 0.0), torch.sigmoid),
    write_49=after(
        put((0, 0, 0, 0), float("nan")), lambda s: torch.nan_to_num_(s.clone(), 3.0).sigmoid()
    ),
    write_50=after(
        lambda s: s.masked_scatter_(s > 0, torch.arange(2 * 2 * 5 * 7, dtype=s.dtype)),
        torch.sigmoid,
    ),
)


@MORE.case(ikv(), of=of_scores)
def write_31(s):
    s = s.expand(2, 2, 5, 7)
    s.mul_(2)
    return F.silu(s)


@MORE.case(ikv())
def write_33(q, k, v):
    s = k @ q.mT
    s.transpose_(-1, -2)
    return F.silu(s) @ v


MORE.table(
    ikv(),
    of=weighted(F.hardtanh_),
    write_37=lambda w, v: F.threshold_(w, 0.5, 0.1) @ v,
)


@MORE.case(ikv(), of=of_scores)
def write_4(s):
    s[:, 1] *= 2
    return F.silu(s)


@MORE.case(ikv())
def write_16(q, k, v):
    buf = torch.full((2, 2, 5, 8), 2.0, dtype=q.dtype)
    buf[..., :7] = q @ k.mT
    return F.relu(buf) @ F.pad(v, (0, 0, 0, 1), value=1.0), F.relu(buf)[..., :7] @ v


@MORE.case(ikv(), of=of_scores)
def write_29(s):
    s = s.contiguous()
    s.reshape(2, 2, 5, 7).mul_(2)
    return F.silu(s)


@MORE.case(ikv(), of=of_scores)
def write_42(s):
    s.copy_(s.relu())
    s.swapaxes(0, 1).mul_(torch.arange(2, dtype=s.dtype)[:, None, None, None] + 1)
    return s


zeros = lambda *shape: plus(ikv(), lambda: (torch.zeros(shape, dtype=D64),))


@MORE.case(ikv())
def write_47(q, k, v):
    x = torch.cat([v, v], -1)
    s = (q @ k.mT).relu()
    x[..., 3:].zero_()
    return s @ x[..., :3] + s @ x[..., 3:]


@MORE.case(zeros(5, 7))
def input_bias_is_written_with_the_scores(q, k, v, bias):
    s = q @ k.mT + bias
    with torch.no_grad():
        bias.lerp_(s.detach().mean((0, 1)), 0.1)
    return F.silu(s) @ v


@MORE.case(plus(qkv(), values([3, 5])))
def lengths_clone_written(q, k, v, lengths):
    mine = lengths.clone()
    mine -= 1
    mask = torch.arange(7) < mine[:, None, None, None]
    mine.zero_()
    return (F.silu(q @ k.mT) * mask) @ v
