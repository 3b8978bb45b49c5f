"""Jagged values: offsets, fills, rows that nobody owns, wrapped padding."""

import fbgemm_gpu  # noqa: F401
import torch
import torch.nn.functional as F

from .rows import Programs, leaves, nothing

CASES = Programs()
case, table = CASES.case, CASES.table


def jag():
    return (*leaves((10, 2, 8), (10, 2, 8), (10, 2, 8)), torch.tensor([0, 3, 3, 10]))


def pad(x, o, n):
    padded = torch.ops.fbgemm.jagged_to_padded_dense(x.flatten(1), [o], [n])
    return padded.view(-1, n, *x.shape[1:]).transpose(1, 2)


def unpad(x, o, t):
    return torch.ops.fbgemm.dense_to_jagged(x.transpose(1, 2).flatten(2), [o], t)[0]


def jag2():
    return (*leaves((10, 8), (10, 8), (10, 8)), torch.tensor([0, 3, 3, 10]))


class Pad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, o, n):
        ctx.save_for_backward(o)
        ctx.t = x.shape[0]
        return torch.ops.aten._jagged_to_padded_dense_forward(x, [o], [n], 0.0)

    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return (
            torch.ops.aten._padded_dense_to_jagged_forward(g.contiguous(), [o], ctx.t),
            None,
            None,
        )


class BadPad(Pad):
    @staticmethod
    def forward(ctx, x, o, n):
        ctx.save_for_backward(o)
        ctx.t = x.shape[0]
        return torch.ops.aten._jagged_to_padded_dense_forward(x, [o], [n], 0.0)

    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return (
            torch.ops.aten._padded_dense_to_jagged_forward(g.contiguous(), [o], ctx.t) * 2,
            None,
            None,
        )


class NoGradPad(Pad):
    @staticmethod
    def forward(ctx, x, o, n):
        return torch.ops.aten._jagged_to_padded_dense_forward(x, [o], [n], 0.0)

    @staticmethod
    def backward(ctx, g):
        return (None, None, None)


class NegPad(Pad):
    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return (torch.ops.aten._padded_dense_to_jagged_forward(g.neg(), [o], ctx.t), None, None)


def padded_by(kind):
    def attention(q, k, v, o):
        return F.silu(kind.apply(q, o, 7) @ kind.apply(k, o, 7).mT) @ kind.apply(v, o, 7)

    attention.__name__ = f"padded_by_{kind.__name__}"
    return attention


@case(jag)
def jagged_two_sets_of_equal_offsets(q, k, v, o):
    p = o.clone()
    return unpad(F.silu(pad(q, o, 7) @ pad(k, p, 7).mT) @ pad(v, p, 7), o, 10)


@case(jag)
def jagged_output_also_padded(q, k, v, o):
    y = F.silu(pad(q, o, 7) @ pad(k, o, 7).mT) @ pad(v, o, 7)
    return (unpad(y, o, 10), y)


table(
    nothing,
    jagged_unowned_rows=(
        lambda q, k, v, o: unpad(F.silu(pad(q, o, 7) @ pad(k, o, 7).mT) @ pad(v, o, 7), o, 10),
        lambda: (*jag()[:3], torch.tensor([1, 3, 3, 8])),
    ),
    jagged_keys_unowned=(
        lambda q, k, v, o: F.silu(torch.ones(3, 2, 4, 8) @ pad(k, o, 7).mT) @ pad(v, o, 7),
        lambda: (*jag()[:3], torch.tensor([1, 3, 3, 8])),
    ),
    jagged_masked_by_lengths_learned_fill=(
        lambda q, k, v, o, b: unpad(
            F.silu(
                torch.where(
                    (torch.arange(7) < (o[1:] - o[:-1])[:, None])[:, None, None],
                    pad(q, o, 7) @ pad(k, o, 7).mT,
                    b,
                )
            )
            @ pad(v, o, 7),
            o,
            10,
        ),
        lambda: (*jag(), torch.randn(3, 1, 1, 7, requires_grad=True)),
    ),
    jagged_bias_padded=(
        lambda q, k, v, o, b: unpad(
            F.silu(pad(q, o, 7) @ pad(k, o, 7).mT + b) @ pad(v, o, 7), o, 10
        ),
        lambda: (*jag(), torch.randn(3, 1, 1, 7, requires_grad=True)),
    ),
    jagged_values_with_other_lengths=(
        lambda q, k, v, o, x: unpad(
            F.silu(pad(q, o, 7) @ pad(k, o, 7).mT)
            * (torch.arange(7) <= (o[1:] - o[:-1])[:, None])[:, None, None]
            @ pad(v, o, 7),
            o,
            10,
        ),
        lambda: (*jag(), torch.randn(10, 2, 8)),
    ),
)


@case(jag)
def jagged_padded_with_ones(q, k, v, o):
    kp = (
        torch.ops.fbgemm.jagged_to_padded_dense(k.flatten(1), [o], [7], 1.0)
        .view(3, 7, 2, 8)
        .transpose(1, 2)
    )
    vp = (
        torch.ops.fbgemm.jagged_to_padded_dense(v.flatten(1), [o], [7], 1.0)
        .view(3, 7, 2, 8)
        .transpose(1, 2)
    )
    return torch.sigmoid(pad(q, o, 7) @ kp.mT) @ vp


table(
    jag,
    jagged_plain=lambda q, k, v, o: unpad(
        F.silu(pad(q, o, 7) @ pad(k, o, 7).mT) @ pad(v, o, 7), o, 10
    ),
    jagged_cut_short=lambda q, k, v, o: unpad(
        F.silu(pad(q, o, 4) @ pad(k, o, 4).mT) @ pad(v, o, 4), o, 10
    ),
    jagged_sigmoid_keys=lambda q, k, v, o: (
        torch.sigmoid(pad(q, o, 7) @ pad(k, o, 7).mT) @ pad(v, o, 7)
    ),
    jagged_hard_threshold=lambda q, k, v, o: unpad(
        ((pad(q, o, 7) @ pad(k, o, 7).mT) > 0).float() @ pad(v, o, 7), o, 10
    ),
    jagged_detached_keys=lambda q, k, v, o: unpad(
        F.silu(pad(q, o, 7) @ pad(k, o, 7).detach().mT) @ pad(v, o, 7), o, 10
    ),
)


@case(jag)
def jagged_no_grad_keys(q, k, v, o):
    with torch.no_grad():
        kp = pad(k, o, 7)
    return unpad(F.silu(pad(q, o, 7) @ kp.mT) @ pad(v, o, 7), o, 10)


@case(jag)
def jagged_inference_keys(q, k, v, o):
    with torch.inference_mode():
        kp = pad(k, o, 7)
    return unpad(F.silu(pad(q.detach(), o, 7) @ kp.mT) @ pad(v, o, 7), o, 10)


@case(jag)
def jagged_values_changed_later(q, k, v, o):
    k2 = k * 1
    y = unpad(F.silu(pad(q, o, 7) @ pad(k2, o, 7).mT) @ pad(v, o, 7), o, 10)
    k2.mul_(2)
    return y + k2.sum()


@case(jag)
def jagged_frozen_values_changed_later(q, k, v, o):
    k2 = k.detach() * 1
    q2 = q.detach() * 1
    y = unpad(F.silu(pad(q2, o, 7) @ pad(k2, o, 7).mT) @ pad(v, o, 7), o, 10)
    k2.mul_(2)
    q2.zero_()
    return y + k2.sum()


CASES += [*((padded_by(kind), jag2) for kind in (Pad, BadPad, NoGradPad, NegPad))]
