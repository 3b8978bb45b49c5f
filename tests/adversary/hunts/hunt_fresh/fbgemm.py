"""Jagged rows by FBGEMM's operators; no programs where FBGEMM is not installed."""

import torch
import torch.nn.functional as F

from ..rows import Programs, normal, nothing, plus, values
from .given import T

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


try:
    import fbgemm_gpu  # noqa: F401  registers torch.ops.fbgemm

    FB = hasattr(torch.ops.fbgemm, "jagged_to_padded_dense")
except Exception:
    FB = False


OTHERS = values([0, 3, 6, 9])


def fpad(x, o, n=5, p=0.0):
    return torch.ops.fbgemm.jagged_to_padded_dense(x, [o], [n], p)


def funpad(x, o, n=9):
    return torch.ops.fbgemm.dense_to_jagged(x, [o], n)[0]


def fj(d=4, offsets=(0, 2, 5, 9), dtype=torch.int64):
    return plus(normal(*[(9, d)] * 3, dtype=torch.float32), values(offsets, dtype=dtype))


def padded(f):
    """The program that is `f` of query, key and value as they are padded."""
    return lambda q, k, v, o, *more: f(fpad(q, o), fpad(k, o), fpad(v, o), o, *more)


def plain(a, b, c, o):
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


table(
    nothing,
    of=padded,
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


table(
    fj(offsets=(0, 0, 1, 9)),
    of=padded,
    fb_truncated=lambda a, b, c, o: funpad(F.silu(a @ T(b)) @ c + 1, o),
)


table(
    nothing,
    fb_truncated_keys=(
        lambda q, k, v, o: plain(fpad(q, o, 9), fpad(k, o, 3), fpad(v, o, 3), o),
        fj(offsets=(0, 0, 1, 9)),
    ),
    fb_truncated_queries=(
        lambda q, k, v, o: plain(fpad(q, o, 3), fpad(k, o, 9), fpad(v, o, 9), o),
        fj(offsets=(0, 0, 1, 9)),
    ),
)


@case(fj())
def fb_pad_inf_k_masked(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o, p=float("inf")), fpad(v, o)
    l = o[1:] - o[:-1]
    return funpad((torch.sigmoid(a @ T(b)) * (torch.arange(5) < l[:, None, None])) @ c, o)


@case(fj())
def fb_value_shift_masked(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o) - 0.5
    l = o[1:] - o[:-1]
    return funpad((torch.sigmoid(a @ T(b)) * (torch.arange(5) < l[:, None, None])) @ c, o)


@case(fj())
def fb_value_sigmoid(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), torch.sigmoid(fpad(v, o))
    return funpad(torch.tanh(a @ T(b)) @ c, o)


@case(fj())
def fb_key_shift_tanh(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o) + 1, fpad(v, o)
    return funpad(torch.tanh(a @ T(b)) @ c, o)


@case(fj())
def fb_linear_value(q, k, v, o):
    w = torch.eye(4, dtype=torch.float32)
    a, b, c = fpad(q, o), fpad(k, o), F.linear(fpad(v, o), w, torch.ones(4, dtype=torch.float32))
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@case(plus(fj(), values([0, 2, 5, 9])))
def fb_equal_offsets_other_tensor(q, k, v, o, o2):
    a, b, c = fpad(q, o), fpad(k, o2), fpad(v, o2)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o2)


@case(fj())
def fb_offsets_cloned(q, k, v, o):
    a, b = fpad(q, o), fpad(k, o)
    o2 = o.clone()
    o2[1] = 4
    c = fpad(v, o2)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@case(fj())
def fb_values_written(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    c.mul_(2)
    c[:, 0] = 1
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@case(fj())
def fb_padded_written_at_padding(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o).clone()
    c[0, -1] = 5.0
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@case(fj())
def fb_mean_between(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    p = torch.sigmoid(a @ T(b)) @ c
    return funpad(p - p.mean(1, keepdim=True), o), p.amax()


@case(fj())
def fb_bias_rel(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    i = torch.arange(5)
    return funpad((torch.sigmoid(a @ T(b) + (i[:, None] - i).to(torch.float32)) / 5) @ c, o)


@case(fj())
def fb_bias_batch(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    l = (o[1:] - o[:-1])[:, None, None]
    i = torch.arange(5)
    return funpad((torch.sigmoid(a @ T(b)) * ((l - 1 - i)[:, :, :] >= i[:, None])) @ c, o)


@case(fj(8))
def fb_heads(q, k, v, o):
    a, b, c = (fpad(x, o).view(3, 5, 2, 4).transpose(1, 2) for x in (q, k, v))
    return funpad((F.silu(a @ T(b)) @ c).transpose(1, 2).reshape(3, 5, 8), o)


@case(fj(8))
def fb_heads_wrong(q, k, v, o):
    a, b, c = (fpad(x, o).view(3, 2, 5, 4) for x in (q, k, v))
    return funpad((F.silu(a @ T(b)) @ c).reshape(3, 5, 8), o)


@case(fj(8))
def fb_heads_interleaved(q, k, v, o):
    a, b, c = (fpad(x, o).view(3, 5, 4, 2).permute(0, 3, 1, 2) for x in (q, k, v))
    return funpad((F.silu(a @ T(b)) @ c).transpose(1, 2).reshape(3, 5, 8), o)


@case(plus(normal((9, 2, 4), (9, 2, 4), (9, 2, 4), dtype=torch.float32), values([0, 2, 5, 9])))
def fb_heads_flat(q, k, v, o):
    a, b, c = (fpad(x.flatten(1), o).view(3, 5, 2, 4) for x in (q, k, v))
    w = F.silu(torch.einsum("bnhd,bmhd->bhnm", a, b))
    return funpad(torch.einsum("bhnm,bmhd->bnhd", w, c).flatten(2), o)


@case(fj())
def fb_twice(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    x = funpad(F.silu(a @ T(b)) @ c, o)
    p = fpad(x, o)
    return funpad(torch.tanh(p @ T(p)) @ p, o) + x


@case(fj())
def fb_only_kv(q, k, v, o):
    b, c = fpad(k, o), fpad(v, o)
    return torch.sigmoid(q[:6].view(3, 2, 4) @ T(b)) @ c


table(
    fj(),
    fb_pad_one_v=lambda q, k, v, o: plain(fpad(q, o), fpad(k, o), fpad(v, o, p=1.0), o),
    fb_pad_nan_q=lambda q, k, v, o: plain(fpad(q, o, p=float("nan")), fpad(k, o), fpad(v, o), o),
    fb_pad_inf_k=lambda q, k, v, o: plain(fpad(q, o), fpad(k, o, p=float("inf")), fpad(v, o), o),
    fb_value_shift=lambda q, k, v, o: plain(fpad(q, o), fpad(k, o), fpad(v, o) - 0.5, o),
    fb_o2_kv=(lambda q, k, v, o, o2: plain(fpad(q, o), fpad(k, o2), fpad(v, o2), o), OTHERS),
    fb_o2_v=(lambda q, k, v, o, o2: plain(fpad(q, o), fpad(k, o), fpad(v, o2), o), OTHERS),
    fb_o2_k=(lambda q, k, v, o, o2: plain(fpad(q, o), fpad(k, o2), fpad(v, o), o), OTHERS),
    fb_dropout_padded_value=lambda q, k, v, o: plain(
        fpad(q, o), fpad(k, o), F.dropout(fpad(v, o), 0.5), o
    ),
    fb_softmaxed_values=lambda q, k, v, o: plain(fpad(q, o), fpad(k, o), fpad(v, o).softmax(-1), o),
    fb_value_nan_fill=lambda q, k, v, o: plain(
        fpad(q, o), fpad(k, o), fpad(v, o, p=float("nan")), o
    ),
    fb_only_q=lambda q, k, v, o: funpad(
        torch.sigmoid(fpad(q, o) @ T(k[:6].view(3, 2, 4))) @ v[:6].view(3, 2, 4), o
    ),
    fb_shared_k=lambda q, k, v, o: funpad(torch.sigmoid(fpad(q, o) @ k.t()) @ v, o),
)


@case(fj())
def fb_row_mask_out(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    m = fpad(torch.ones(9, 1, dtype=torch.float32), o)
    return funpad((F.silu(a @ T(b)) * m * T(m)) @ c, o)


@case(fj())
def fb_mask_int(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    m = fpad(torch.ones(9, 1, dtype=torch.float32), o) > 0
    return funpad((F.silu(a @ T(b)) * (m ^ T(m)).logical_not()) @ c, o)


@case(fj())
def fb_q_norm(q, k, v, o):
    a, b, c = F.normalize(fpad(q, o), dim=1), fpad(k, o), fpad(v, o)
    return funpad(F.silu(a @ T(b)) @ c, o)


@case(fj())
def fb_v_layernorm(q, k, v, o):
    a, b, c = (
        fpad(q, o),
        fpad(k, o),
        F.layer_norm(
            fpad(v, o), (4,), torch.ones(4, dtype=torch.float32), torch.ones(4, dtype=torch.float32)
        ),
    )
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@case(fj())
def fb_offset_gradient_of_input(q, k, v, o):
    a, b, c = fpad(q * v, o), fpad(q + k, o), fpad(v, o)
    return funpad(F.silu(a @ T(b)) @ c, o), q.sum()


@case(fj())
def fb_unpad_total_from_shape(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(F.silu(a @ T(b)) @ c, o, q.shape[0])


table(
    fj(),
    of=padded,
    fb_o2_out=(lambda a, b, c, o, o2: funpad(torch.sigmoid(a @ T(b)) @ c, o2), OTHERS),
    fb_dropout_between=lambda a, b, c, o: funpad(F.dropout(torch.sigmoid(a @ T(b)) @ c, 0.5), o),
    fb_residual=lambda a, b, c, o: funpad(torch.sigmoid(a @ T(b)) @ c + a, o),
    fb_cumsum_between=lambda a, b, c, o: funpad((torch.sigmoid(a @ T(b)) @ c).cumsum(1), o),
    fb_padded_mean=lambda a, b, c, o: (torch.sigmoid(a @ T(b)) @ c).mean(1),
    fb_bias_padded_param=(
        lambda a, b, c, o, w: funpad(torch.sigmoid(a @ T(b) + w) @ c, o),
        normal((3, 5, 5), dtype=torch.float32),
    ),
    fb_bias_jagged=(
        lambda a, b, c, o, w: funpad(torch.sigmoid(a @ T(b) + T(fpad(w, o))) @ c, o),
        normal((9, 1), dtype=torch.float32),
    ),
    fb_gate_jagged=(
        lambda a, b, c, o, w: funpad((torch.sigmoid(a @ T(b)) * T(fpad(w, o, p=1.0))) @ c, o),
        normal((9, 1), dtype=torch.float32),
    ),
    fb_no_unpad=lambda a, b, c, o: F.silu(a @ T(b)) @ c,
    fb_no_unpad_sigmoid=lambda a, b, c, o: torch.sigmoid(a @ T(b)) @ c,
    fb_scores_div0=lambda a, b, c, o: funpad((1 / (a @ T(b))) @ c, o),
    fb_scores_log=lambda a, b, c, o: funpad(torch.log((a @ T(b)).abs()) @ c, o),
    fb_scores_sqrt_grad=lambda a, b, c, o: funpad(torch.sqrt((a @ T(b)).abs()) @ c, o),
    fb_scores_rsqrt_pos=lambda a, b, c, o: funpad(((a @ T(b)).square() ** 0.25) @ c, o),
    fb_unpad_bigger_total=lambda a, b, c, o: funpad(F.silu(a @ T(b)) @ c, o, 9).sum(0),
    fb_reciprocal=lambda a, b, c, o: funpad(torch.reciprocal(a @ T(b)) @ c, o),
    fb_rsqrt_abs=lambda a, b, c, o: funpad(torch.rsqrt((a @ T(b)).abs()) @ c, o),
    fb_log1p_ok=lambda a, b, c, o: funpad(torch.log1p((a @ T(b)).abs()) @ c, o),
    fb_value_div0=lambda a, b, c, o: funpad(
        torch.sigmoid(a @ T(b)) @ (c / c.norm(dim=-1, keepdim=True)), o
    ),
    fb_unpad_no_total=lambda a, b, c, o: torch.ops.fbgemm.dense_to_jagged(
        F.silu(a @ T(b)) @ c, [o]
    )[0],
)


@case(fj())
def fb_elementwise_add(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    p = F.silu(a @ T(b)) @ c
    return torch.ops.fbgemm.jagged_dense_elementwise_add_jagged_output(q, [o], p)[0]


@case(fj())
def fb_signed_sqrt(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    s = a @ T(b)
    return funpad((s.sign() * s.abs().sqrt()) @ c, o)


if not FB:
    PROGRAMS.clear()
