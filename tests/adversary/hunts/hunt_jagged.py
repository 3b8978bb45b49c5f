"""Jagged values: offsets, fills, rows that nobody owns, wrapped padding."""

import fbgemm_gpu  # noqa: F401
import torch
import torch.nn.functional as F

from .paddings import NoGradientPad, pad_function
from .rows import Programs, leaves, normal, plus, values

CASES = Programs()
case, table = CASES.case, CASES.table
ROWS = normal(*[(10, 2, 8)] * 3, dtype=torch.float32)
OFFSETS, UNOWNED = values([0, 3, 3, 10]), values([1, 3, 3, 8])
jag = plus(ROWS, OFFSETS)
LEARNED = lambda: leaves((3, 1, 1, 7))


def pad(x, o, n=7, fill=0.0):
    """[B, 2, n, 8]"""
    padded = torch.ops.fbgemm.jagged_to_padded_dense(x.flatten(1), [o], [n], fill)
    return padded.view(-1, n, *x.shape[1:]).transpose(1, 2)


def unpad(x, o):
    return torch.ops.fbgemm.dense_to_jagged(x.transpose(1, 2).flatten(2), [o], 10)[0]


def padded(f):
    """The program that is `f` of query, key and value as they are padded."""
    return lambda q, k, v, o, *more: f(pad(q, o), pad(k, o), pad(v, o), o, *more)


def of_scores(f):
    """Its weights are `f` of the scores, and its output is unpadded."""
    return padded(lambda q, k, v, o, *more: unpad(f(q @ k.mT, o, *more) @ v, o))


def within(o, slack=0):
    return (torch.arange(7) < (o[1:] - o[:-1])[:, None] + slack)[:, None, None]


silu = of_scores(lambda s, o: F.silu(s))
table(
    ROWS,
    jagged_plain=(silu, OFFSETS),
    jagged_unowned_rows=(silu, UNOWNED),
    jagged_keys_unowned=(
        padded(lambda q, k, v, o: F.silu(torch.ones(3, 2, 4, 8) @ k.mT) @ v),
        UNOWNED,
    ),
    jagged_cut_short=(
        lambda q, k, v, o: unpad(F.silu(pad(q, o, 4) @ pad(k, o, 4).mT) @ pad(v, o, 4), o),
        OFFSETS,
    ),
    jagged_padded_with_ones=(
        lambda q, k, v, o: torch.sigmoid(pad(q, o) @ pad(k, o, 7, 1.0).mT) @ pad(v, o, 7, 1.0),
        OFFSETS,
    ),
)
table(
    jag,
    of=padded,
    jagged_sigmoid_keys=lambda q, k, v, o: torch.sigmoid(q @ k.mT) @ v,
    jagged_detached_keys=lambda q, k, v, o: unpad(F.silu(q @ k.detach().mT) @ v, o),
)
table(
    jag,
    of=of_scores,
    jagged_masked_by_lengths_learned_fill=(
        lambda s, o, b: F.silu(torch.where(within(o), s, b)),
        LEARNED,
    ),
    jagged_bias_padded=(lambda s, o, b: F.silu(s + b), LEARNED),
    jagged_values_with_other_lengths=lambda s, o: F.silu(s) * within(o, slack=1),
    jagged_hard_threshold=lambda s, o: (s > 0).float(),
)


@case(jag)
def jagged_two_sets_of_equal_offsets(q, k, v, o):
    p = o.clone()
    return unpad(F.silu(pad(q, o) @ pad(k, p).mT) @ pad(v, p), o)


@case(jag, of=padded)
def jagged_output_also_padded(q, k, v, o):
    y = F.silu(q @ k.mT) @ v
    return unpad(y, o), y


# Gradient modes, and writes after the output


@case(jag)
def jagged_no_grad_keys(q, k, v, o):
    with torch.no_grad():
        kp = pad(k, o)
    return unpad(F.silu(pad(q, o) @ kp.mT) @ pad(v, o), o)


@case(jag)
def jagged_inference_keys(q, k, v, o):
    with torch.inference_mode():
        kp = pad(k, o)
    return unpad(F.silu(pad(q.detach(), o) @ kp.mT) @ pad(v, o), o)


@case(jag)
def jagged_values_changed_later(q, k, v, o):
    k2 = k * 1
    y = silu(q, k2, v, o)
    k2.mul_(2)
    return y + k2.sum()


@case(jag)
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


table(
    plus(normal(*[(10, 8)] * 3, dtype=torch.float32), OFFSETS),
    of=padded_by,
    prefix="padded_by_",
    Pad=pad_function(7),
    BadPad=pad_function(7, lambda g: g * 2),
    NegPad=pad_function(7, torch.neg),
    NoGradPad=NoGradientPad,
)
