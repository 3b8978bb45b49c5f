"""Jagged rows by FBGEMM's operators; no programs where FBGEMM is not installed."""

import contextlib

import torch
import torch.nn.functional as F

with contextlib.suppress(ImportError):
    import fbgemm_gpu  # noqa: F401  registers torch.ops.fbgemm

from .paddings import Library
from .rows import INF, Programs, normal, nothing, plus, values

CASES = Programs()


NAN, OTHERS = float("nan"), values([0, 3, 6, 9])


def pad(x, o, n=5, p=0.0):
    return torch.ops.fbgemm.jagged_to_padded_dense(x, [o], [n], p)


def unpad(x, o, n=9):
    return torch.ops.fbgemm.dense_to_jagged(x, [o], n)[0]


def of_floats(*shapes):
    return normal(*shapes, dtype=torch.float32)


def fj(d=4, offsets=(0, 2, 5, 9), dtype=torch.int64):
    return plus(of_floats(*[(9, d)] * 3), values(offsets, dtype=dtype))


FBGEMM = Library(pad, unpad)


def output(f):
    """It unpads `f` of the padded output."""
    return FBGEMM.rows(lambda a, b, c, o: f(torch.sigmoid(a @ b.mT) @ c))


def plain(a, b, c, o):
    return unpad(torch.sigmoid(a @ b.mT) @ c, o)


def of_value(f):
    """`f` changes the padded value."""
    return FBGEMM.padded(lambda a, b, c, o: plain(a, b, f(c), o))


def fills(q=0.0, k=0.0, v=0.0):
    return lambda x, y, z, o: plain(pad(x, o, p=q), pad(y, o, p=k), pad(z, o, p=v), o)


def widths(q, k):
    return lambda x, y, z, o: plain(pad(x, o, q), pad(y, o, k), pad(z, o, k), o)


def lengths(o):
    return (o[1:] - o[:-1])[:, None, None]


def split(x):
    return x.view(3, 5, 2, 4).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).reshape(3, 5, 8)


CASES.table(
    nothing,
    of=FBGEMM.padded,
    prefix="fb_plain_",
    plain=(plain, fj()),
    int32=(plain, fj(dtype=torch.int32)),
    empty=(plain, fj(offsets=(0, 0, 5, 9))),
    start2=(plain, fj(offsets=(2, 4, 7, 9))),
    end8=(plain, fj(offsets=(0, 2, 5, 8))),
    all_in_one=(plain, fj(offsets=(0, 5, 5, 9))),
    one_seq=(plain, fj(offsets=(0, 9))),
    too_long=(plain, fj(offsets=(0, 0, 1, 9))),
    backwards=(plain, fj(offsets=(0, 5, 3, 9))),
)
CASES.table(
    fj(offsets=(0, 0, 1, 9)),
    fb_truncated=FBGEMM.padded(lambda a, b, c, o: unpad(F.silu(a @ b.mT) @ c + 1, o)),
    fb_truncated_keys=widths(9, 3),
    fb_truncated_queries=widths(3, 9),
)
CASES.table(
    fj(),
    fb_pad_one_v=fills(v=1.0),
    fb_pad_nan_q=fills(q=NAN),
    fb_pad_inf_k=fills(k=INF),
    fb_value_nan_fill=fills(v=NAN),
    fb_pad_inf_k_masked=lambda q, k, v, o: unpad(
        (torch.sigmoid(pad(q, o) @ pad(k, o, p=INF).mT) * (torch.arange(5) < lengths(o)))
        @ pad(v, o),
        o,
    ),
    fb_o2_kv=(lambda q, k, v, o, o2: plain(pad(q, o), pad(k, o2), pad(v, o2), o), OTHERS),
    fb_o2_v=(lambda q, k, v, o, o2: plain(pad(q, o), pad(k, o), pad(v, o2), o), OTHERS),
    fb_o2_k=(lambda q, k, v, o, o2: plain(pad(q, o), pad(k, o2), pad(v, o), o), OTHERS),
    fb_equal_offsets_other_tensor=(
        lambda q, k, v, o, o2: plain(pad(q, o), pad(k, o2), pad(v, o2), o2),
        values([0, 2, 5, 9]),
    ),
    fb_only_q=lambda q, k, v, o: plain(pad(q, o), k[:6].view(3, 2, 4), v[:6].view(3, 2, 4), o),
    fb_only_kv=lambda q, k, v, o: torch.sigmoid(q[:6].view(3, 2, 4) @ pad(k, o).mT) @ pad(v, o),
    fb_shared_k=lambda q, k, v, o: plain(pad(q, o), k, v, o),
    fb_offset_gradient_of_input=lambda q, k, v, o: (
        unpad(F.silu(pad(q * v, o) @ pad(q + k, o).mT) @ pad(v, o), o),
        q.sum(),
    ),
    fb_unpad_total_from_shape=lambda q, k, v, o: unpad(
        F.silu(pad(q, o) @ pad(k, o).mT) @ pad(v, o), o, q.shape[0]
    ),
)
CASES.table(
    fj(),
    of=of_value,
    fb_value_shift=lambda c: c - 0.5,
    fb_dropout_padded_value=lambda c: F.dropout(c, 0.5),
    fb_softmaxed_values=lambda c: c.softmax(-1),
    fb_value_div0=lambda c: c / c.norm(dim=-1, keepdim=True),
    fb_linear_value=lambda c: F.linear(
        c, torch.eye(4, dtype=torch.float32), torch.ones(4, dtype=torch.float32)
    ),
    fb_v_layernorm=lambda c: F.layer_norm(
        c, (4,), torch.ones(4, dtype=torch.float32), torch.ones(4, dtype=torch.float32)
    ),
)
CASES.table(
    fj(),
    of=FBGEMM.weights,
    fb_bias_padded_param=(lambda s, o, w: torch.sigmoid(s + w), of_floats((3, 5, 5))),
    fb_bias_jagged=(lambda s, o, w: torch.sigmoid(s + pad(w, o).mT), of_floats((9, 1))),
    fb_gate_jagged=(lambda s, o, w: torch.sigmoid(s) * pad(w, o, p=1.0).mT, of_floats((9, 1))),
    fb_bias_rel=lambda s, o: (
        torch.sigmoid(s + (torch.arange(5)[:, None] - torch.arange(5)).to(torch.float32)) / 5
    ),
    fb_bias_batch=lambda s, o: (
        torch.sigmoid(s) * (lengths(o) - 1 - torch.arange(5) >= torch.arange(5)[:, None])
    ),
    fb_scores_div0=lambda s, o: 1 / s,
    fb_scores_log=lambda s, o: torch.log(s.abs()),
    fb_scores_sqrt_grad=lambda s, o: torch.sqrt(s.abs()),
    fb_scores_rsqrt_pos=lambda s, o: s.square() ** 0.25,
    fb_reciprocal=lambda s, o: torch.reciprocal(s),
    fb_rsqrt_abs=lambda s, o: torch.rsqrt(s.abs()),
    fb_log1p_ok=lambda s, o: torch.log1p(s.abs()),
    fb_signed_sqrt=lambda s, o: s.sign() * s.abs().sqrt(),
)
CASES.table(
    fj(),
    of=output,
    fb_dropout_between=lambda p: F.dropout(p, 0.5),
    fb_cumsum_between=lambda p: p.cumsum(1),
)
CASES.table(
    fj(),
    of=FBGEMM.padded,
    fb_value_shift_masked=lambda a, b, c, o: unpad(
        (torch.sigmoid(a @ b.mT) * (torch.arange(5) < lengths(o))) @ (c - 0.5), o
    ),
    fb_key_shift_tanh=lambda a, b, c, o: unpad(torch.tanh(a @ (b + 1).mT) @ c, o),
    fb_q_norm=lambda a, b, c, o: unpad(F.silu(F.normalize(a, dim=1) @ b.mT) @ c, o),
    fb_value_sigmoid=lambda a, b, c, o: unpad(torch.tanh(a @ b.mT) @ torch.sigmoid(c), o),
    fb_o2_out=(lambda a, b, c, o, o2: plain(a, b, c, o2), OTHERS),
    fb_residual=lambda a, b, c, o: unpad(torch.sigmoid(a @ b.mT) @ c + a, o),
    fb_padded_mean=lambda a, b, c, o: (torch.sigmoid(a @ b.mT) @ c).mean(1),
    fb_no_unpad=lambda a, b, c, o: F.silu(a @ b.mT) @ c,
    fb_no_unpad_sigmoid=lambda a, b, c, o: torch.sigmoid(a @ b.mT) @ c,
    fb_unpad_bigger_total=lambda a, b, c, o: unpad(F.silu(a @ b.mT) @ c, o, 9).sum(0),
    fb_unpad_no_total=lambda a, b, c, o: torch.ops.fbgemm.dense_to_jagged(
        F.silu(a @ b.mT) @ c, [o]
    )[0],
)
CASES.table(
    fj(8),
    of=FBGEMM.padded,
    fb_heads=lambda a, b, c, o: unpad(joined(F.silu(split(a) @ split(b).mT) @ split(c)), o),
    fb_heads_wrong=lambda a, b, c, o: unpad(
        (F.silu(a.view(3, 2, 5, 4) @ b.view(3, 2, 5, 4).mT) @ c.view(3, 2, 5, 4)).reshape(3, 5, 8),
        o,
    ),
)


@CASES.case(fj(8), of=FBGEMM.padded)
def fb_heads_interleaved(a, b, c, o):
    a, b, c = (x.view(3, 5, 4, 2).permute(0, 3, 1, 2) for x in (a, b, c))
    return unpad(joined(F.silu(a @ b.mT) @ c), o)


@CASES.case(plus(of_floats(*[(9, 2, 4)] * 3), values([0, 2, 5, 9])))
def fb_heads_flat(q, k, v, o):
    a, b, c = (pad(x.flatten(1), o).view(3, 5, 2, 4) for x in (q, k, v))
    w = F.silu(torch.einsum("bnhd,bmhd->bhnm", a, b))
    return unpad(torch.einsum("bhnm,bmhd->bnhd", w, c).flatten(2), o)


@CASES.case(fj())
def fb_offsets_cloned(q, k, v, o):
    a, b = pad(q, o), pad(k, o)
    o2 = o.clone()
    o2[1] = 4
    return plain(a, b, pad(v, o2), o)


@CASES.case(fj(), of=FBGEMM.padded)
def fb_values_written(a, b, c, o):
    c.mul_(2)
    c[:, 0] = 1
    return plain(a, b, c, o)


@CASES.case(fj(), of=FBGEMM.padded)
def fb_padded_written_at_padding(a, b, c, o):
    c = c.clone()
    c[0, -1] = 5.0
    return plain(a, b, c, o)


@CASES.case(fj(), of=FBGEMM.padded)
def fb_mean_between(a, b, c, o):
    p = torch.sigmoid(a @ b.mT) @ c
    return unpad(p - p.mean(1, keepdim=True), o), p.amax()


@CASES.case(fj(), of=FBGEMM.padded)
def fb_twice(a, b, c, o):
    x = unpad(F.silu(a @ b.mT) @ c, o)
    p = pad(x, o)
    return unpad(torch.tanh(p @ p.mT) @ p, o) + x


@CASES.case(fj(), of=FBGEMM.padded)
def fb_row_mask_out(a, b, c, o):
    m = pad(torch.ones(9, 1, dtype=torch.float32), o)
    return unpad((F.silu(a @ b.mT) * m * m.mT) @ c, o)


@CASES.case(fj(), of=FBGEMM.padded)
def fb_mask_int(a, b, c, o):
    m = pad(torch.ones(9, 1, dtype=torch.float32), o) > 0
    return unpad((F.silu(a @ b.mT) * (m ^ m.mT).logical_not()) @ c, o)


@CASES.case(fj())
def fb_elementwise_add(q, k, v, o):
    p = F.silu(pad(q, o) @ pad(k, o).mT) @ pad(v, o)
    return torch.ops.fbgemm.jagged_dense_elementwise_add_jagged_output(q, [o], p)[0]


def there(programs: Programs) -> Programs:
    """The programs, if FBGEMM is installed: it has builds for some versions of torch only."""
    return programs if hasattr(torch.ops.fbgemm, "jagged_to_padded_dense") else Programs()


CASES = there(CASES)
