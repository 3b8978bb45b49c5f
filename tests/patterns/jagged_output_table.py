"""Rows of the jagged table: a cast between the second product and the unpadding, and what is said
of one operand alone that is padded or written into.
"""

import torch
import torch.nn.functional as F

from tests.jagged import pad, unpad
from tests.patterns.jagged_table import ROWS, SELF, attend, jagged

__all__ = ["ROWS"]


@jagged("qk")
def cast_before_unpadding(q, k, v, offsets, n):
    """The rounding to fp32 is the model's, and stays."""
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)))
    return unpad(out.float().flatten(2).double(), offsets, q.shape[0])


@jagged("qk")
def cast_as_the_rows_are(q, k, v, offsets, n):
    """What a cast only takes the dtype of may be padded."""
    rows = pad(q, offsets, n)
    out = attend(rows, pad(k, offsets, n), pad(v, offsets, n))
    return unpad(out.bfloat16().mT.type_as(rows).mT, offsets, q.shape[0])


@jagged("k", "JAGGED_OUTPUT")
def cast_that_is_used_padded(q, k, v, offsets, n):
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)), torch.sigmoid).float()
    return unpad(out, offsets, q.shape[0]), out.sum()


@jagged("k", "JAGGED_OUTPUT")
def cast_that_is_written_into(q, k, v, offsets, n):
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)), torch.sigmoid).float()
    out[:, 1:] = out[:, :-1].clone()
    return unpad(out, offsets, q.shape[0])


@jagged("k", "JAGGED_OUTPUT")
def cast_to_integers_before_unpadding(q, k, v, offsets, n):
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)), lambda s: 8 * F.silu(s))
    return unpad(out.int(), offsets, q.shape[0])


@jagged("k", "JAGGED_OUTPUT")
def rows_moved_behind_a_cast(q, k, v, offsets, n):
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)))
    return unpad(out.float().roll(1, dims=1), offsets, q.shape[0])


@jagged("k", "GRAD_MODE")
def cast_without_a_gradient(q, k, v, offsets, n):
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)))
    with torch.no_grad():
        fixed = out.float()
    return unpad(fixed, offsets, q.shape[0]) * q[:, :1, :1]


@jagged("k", "JAGGED_OFFSETS", **SELF, other="other")
def cast_unpadded_by_other_offsets(q, k, v, offsets, n, other):
    return unpad(attend(*(pad(x, offsets, n) for x in (q, k, v))).float(), other, q.shape[0])


@jagged("q", "JAGGED_OPERAND")
def padded_keys_written_into(q, k, v, offsets, n):
    keys = pad(k, offsets, n)
    keys[:, 0] = 0.0
    return unpad(attend(pad(q, offsets, n), keys, pad(v, offsets, n)), offsets, q.shape[0])


@jagged("k", "JAGGED_OPERAND")
def padded_rows_written_into_through_a_view(q, k, v, offsets, n):
    rows = pad(q, offsets, n)
    rows.transpose(1, 2)[:, 0] *= 2.0
    return unpad(attend(rows, pad(k, offsets, n), pad(v, offsets, n)), offsets, q.shape[0])


@jagged("q", "JAGGED_OPERAND", **{**SELF, "k": "b n h d"})
def only_values_padded(q, k, v, offsets, n):
    return unpad(attend(pad(q, offsets, n), k, pad(v, offsets, n)), offsets, q.shape[0])


@jagged("q", "JAGGED_OPERAND", **{**SELF, "v": "b n h e"})
def only_keys_padded(q, k, v, offsets, n):
    return unpad(attend(pad(q, offsets, n), pad(k, offsets, n), v), offsets, q.shape[0])


@jagged("", "CONTRACTION", q="l h*2 d", k="l h d", v="l h e", offsets="offsets", n="scalar: n")
def keys_repeated_along_their_positions(q, k, v, offsets, n):
    """Each key counts twice: that is no padding of as many keys."""
    repeat = lambda x: pad(x, offsets, n).repeat_interleave(2, dim=1)
    rows = pad(q, offsets, n).unflatten(2, (-1, 2))[:, :, :, 0]
    return unpad(attend(rows, repeat(k), repeat(v)), offsets, q.shape[0])


@jagged("q", "JAGGED_OPERAND")
def keys_repeated_by_counts_of_a_tensor(q, k, v, offsets, n):
    counts = torch.tensor([2, 0]).expand(q.shape[1] // 2, 2).flatten()
    repeat = lambda x: x.repeat_interleave(counts, dim=2, output_size=q.shape[1])
    keys, values = repeat(pad(k, offsets, n)), repeat(pad(v, offsets, n))
    return unpad(attend(pad(q, offsets, n), keys, values), offsets, q.shape[0])
