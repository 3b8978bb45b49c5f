"""FBGEMM's padding with the heads first, rows that nobody owns, and functions that pad."""

import torch
import torch.nn.functional as F

from .fbgemm import there
from .paddings import Library, NoGradientPad, pad_function
from .rows import Programs, leaves, normal, plus, values

CASES = Programs()

ROWS = normal(*[(10, 2, 8)] * 3, dtype=torch.float32)
OWNED, UNOWNED = values([0, 3, 3, 10]), values([1, 3, 3, 8])
jag = plus(ROWS, OWNED)
LEARNED = lambda: leaves((3, 1, 1, 7))


def pad(x, o, n=7, fill=0.0):
    """[B, 2, n, 8]"""
    padded = torch.ops.fbgemm.jagged_to_padded_dense(x.flatten(1), [o], [n], fill)
    return padded.view(-1, n, *x.shape[1:]).transpose(1, 2)


def unpad(x, o):
    return torch.ops.fbgemm.dense_to_jagged(x.transpose(1, 2).flatten(2), [o], 10)[0]


HEADS_FIRST = Library(pad, unpad)


def within(o, slack=0):
    return (torch.arange(7) < (o[1:] - o[:-1])[:, None] + slack)[:, None, None]


silu = HEADS_FIRST.weights(lambda s, o: F.silu(s))
CASES.table(
    ROWS,
    jagged_plain=(silu, OWNED),
    jagged_unowned_rows=(silu, UNOWNED),
    jagged_keys_unowned=(
        HEADS_FIRST.padded(lambda q, k, v, o: F.silu(torch.ones(3, 2, 4, 8) @ k.mT) @ v),
        UNOWNED,
    ),
    jagged_cut_short=(
        lambda q, k, v, o: unpad(F.silu(pad(q, o, 4) @ pad(k, o, 4).mT) @ pad(v, o, 4), o),
        OWNED,
    ),
    jagged_padded_with_ones=(
        lambda q, k, v, o: torch.sigmoid(pad(q, o) @ pad(k, o, 7, 1.0).mT) @ pad(v, o, 7, 1.0),
        OWNED,
    ),
)
CASES.table(
    jag,
    of=HEADS_FIRST.padded,
    jagged_sigmoid_keys=lambda q, k, v, o: torch.sigmoid(q @ k.mT) @ v,
    jagged_detached_keys=lambda q, k, v, o: unpad(F.silu(q @ k.detach().mT) @ v, o),
)
CASES.table(
    jag,
    of=HEADS_FIRST.weights,
    jagged_masked_by_lengths_learned_fill=(
        lambda s, o, b: F.silu(torch.where(within(o), s, b)),
        LEARNED,
    ),
    jagged_bias_padded=(lambda s, o, b: F.silu(s + b), LEARNED),
    jagged_values_with_other_lengths=lambda s, o: F.silu(s) * within(o, slack=1),
    jagged_hard_threshold=lambda s, o: (s > 0).float(),
)


@CASES.case(jag)
def jagged_two_sets_of_equal_offsets(q, k, v, o):
    p = o.clone()
    return unpad(F.silu(pad(q, o) @ pad(k, p).mT) @ pad(v, p), o)


@CASES.case(jag, of=HEADS_FIRST.padded)
def jagged_output_also_padded(q, k, v, o):
    y = F.silu(q @ k.mT) @ v
    return unpad(y, o), y


# Gradient modes, and writes after the output


@CASES.case(jag)
def jagged_no_grad_keys(q, k, v, o):
    with torch.no_grad():
        kp = pad(k, o)
    return unpad(F.silu(pad(q, o) @ kp.mT) @ pad(v, o), o)


@CASES.case(jag)
def jagged_inference_keys(q, k, v, o):
    with torch.inference_mode():
        kp = pad(k, o)
    return unpad(F.silu(pad(q.detach(), o) @ kp.mT) @ pad(v, o), o)


@CASES.case(jag)
def jagged_values_changed_later(q, k, v, o):
    k2 = k * 1
    y = silu(q, k2, v, o)
    k2.mul_(2)
    return y + k2.sum()


@CASES.case(jag)
def jagged_frozen_values_changed_later(q, k, v, o):
    k2 = k.detach() * 1
    q2 = q.detach() * 1
    y = silu(q2, k2, v, o)
    k2.mul_(2)
    q2.zero_()
    return y + k2.sum()


# Functions of autograd's that pad, rightly and wrongly


def padded_by(kind):
    pad = kind.apply
    return lambda q, k, v, o: F.silu(pad(q, o) @ pad(k, o).mT) @ pad(v, o)


CASES.table(
    plus(normal(*[(10, 8)] * 3, dtype=torch.float32), OWNED),
    of=padded_by,
    prefix="padded_by_",
    Pad=pad_function(7),
    BadPad=pad_function(7, lambda g: g * 2),
    NegPad=pad_function(7, torch.neg),
    NoGradPad=NoGradientPad,
)


# Activations that are infinite, or infinitely steep, at the scores of padding


def one_head(act):
    def attention(q, k, v, offsets):
        padded = torch.ops.fbgemm.jagged_to_padded_dense
        q, k, v = (padded(x, [offsets], [5], 0.0) for x in (q, k, v))
        return torch.ops.fbgemm.dense_to_jagged(act(q @ k.mT) @ v, [offsets], 9)[0]

    return attention


CASES.table(
    plus(normal(*[(9, 4)] * 3, dtype=torch.float32), values([0, 2, 5, 9])),
    of=one_head,
    reciprocal=torch.reciprocal,
    log_of_size=lambda s: torch.log(s.abs()),
    rsqrt_of_size=lambda s: torch.rsqrt(s.abs()),
    signed_root=lambda s: s.sign() * s.abs().sqrt(),
)


CASES = there(CASES)
