"""Products in strange writing, expanded operands, special values, dead parts of what is read."""

import torch
import torch.nn.functional as F

from .rows import Programs, leaves, nothing, of_scores

CASES = Programs()
case, table = CASES.case, CASES.table


B, H, N, M, D = 2, 2, 6, 8, 4


def qkv():
    return leaves((B, H, N, D), (B, H, M, D), (B, H, M, D))


def with_bias():
    return (*qkv(), *leaves((H, N, M)))


def with_vectors():
    return (*qkv(), *leaves((M,), (2 * M,)))


def grouped():
    return leaves((B, 4, N, D), (B, 2, M, D), (B, 2, M, D))


def special():
    """No NaN among the scores: eager's own vectors and single elements differ in gradients there
    (elu, hardswish, softshrink, hardshrink).
    """
    q, k, v = (x.detach().clone() for x in qkv())
    q[0, 0, 0, 0], q[1, 1, 1] = torch.inf, 1e30
    q[0, 1, 3], k[1, 0, 0], v[0, 0, 1, 0] = -0.0, 1e-40, -0.0
    return tuple(x.requires_grad_() for x in (q, k, v))


# Open: eager gives the bias zeros, the rewrite none; the judge refuses it. No case yet.
def bias_of_beta_zero_alone(q, k, v, b):
    return F.silu(torch.baddbmm(b * 1, q[0], k[0].mT, beta=0, alpha=0.5)) @ v[0]


def activation_of_infinities(act):
    def masked(q, k, v):
        low = torch.ones(N, M).tril().bool()
        return act((q @ k.mT).masked_fill(~low, -torch.inf)) @ v

    masked.__name__ = f"infinities_through_{act.__name__}"
    return masked


def specials_through(act):
    def specials(q, k, v):
        return act((q @ k.mT) * 0.5) @ v

    specials.__name__ = f"specials_through_{act.__name__}"
    return specials


def softsign(s):
    return F.softsign(s)


def squared_relu(s):
    return F.relu(s) ** 2


def negative_softplus(s):
    return F.softplus(s, beta=-1.0)


def falling_leaky(s):
    return F.leaky_relu(s, -0.5)


def steep_celu(s):
    return F.celu(s, 0.01)


def negative_celu(s):
    return F.celu(s, -2.0)


def inverse_elu(s):
    return F.elu(s, -1.5)


def thresholded(s):
    return F.threshold(s, 0.5, -20.0)


def shrunk(s):
    return F.softshrink(s, 0.0) + F.hardshrink(s, 0.25)


ACTS = [
    F.silu, F.gelu, F.relu, torch.sigmoid, torch.tanh, F.softplus, F.mish, F.hardswish, F.elu,
    F.hardsigmoid, F.selu, F.logsigmoid, F.relu6, torch.exp, F.tanhshrink, softsign, squared_relu,
    negative_softplus, falling_leaky, steep_celu, negative_celu, inverse_elu, thresholded, shrunk,
]  # fmt: skip


@case(grouped)
def einsum_groups(q, k, v):
    q = q.view(B, 2, 2, N, D)
    s = torch.einsum("bgrnd,bgmd->bgrnm", q, k)
    return torch.einsum("bgrnm,bgmd->bnrgd", F.silu(s), v)


@case(grouped)
def groups_repeated(q, k, v):
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    return F.silu(q @ k.mT) @ v


@case(grouped)
def groups_tiled(q, k, v):
    k, v = (x.repeat(1, 2, 1, 1) for x in (k, v))
    return F.silu(q @ k.mT) @ v


@case(grouped)
def groups_expanded_inside(q, k, v):
    k, v = (x[:, None].expand(B, 2, 2, M, D).reshape(B, 4, M, D) for x in (k, v))
    return F.silu(q @ k.mT) @ v


@case(with_bias)
def expanded_batches(q, k, v, b):
    k, v = k[:1].expand(B, H, M, D), v[:, :1].expand(B, H, M, D)
    s = torch.bmm(q.reshape(-1, N, D), k.reshape(-1, M, D).mT).view(B, H, N, M)
    return F.relu(s + b) @ v


table(
    with_bias,
    einsum_broadcast=lambda q, k, v, b: torch.einsum(
        "hnm,bhmd->bnhd", torch.relu(torch.einsum("bhnd,hmd->hnm", q, k[0]) + b), v
    ),
    einsum_keys_first=lambda q, k, v, b: torch.einsum(
        "bmhn,bhmd->dnhb", F.silu(torch.einsum("bhmd,bhnd->bmhn", k, q) + b.permute(2, 0, 1)), v
    ),
    einsum_ellipsis=lambda q, k, v, b: torch.einsum(
        "...nm,...md->...dn", F.gelu(torch.einsum("...nd,...md->...nm", q, k)), v
    ),
    rows_flipped=lambda q, k, v, b: (F.silu(q.flip(2) @ k.mT + b.flip(-1)) @ v).flip(2),
    bias_of_beta_zero=lambda q, k, v, b: (
        F.silu(torch.baddbmm(b, q[0], k[0].mT, beta=0)) @ v[0] + 0 * b.sum()
    ),
)


@case(with_bias)
def bias_overwritten(q, k, v, b):
    x = b * 1.0
    s = q[0] @ k[0].mT
    x.copy_(s)
    return F.silu(x) @ v[0]


table(
    nothing,
    of=of_scores,
    diagonal_bias=(
        lambda s, a, b: F.silu(s + torch.diag_embed(a)[:N] + b.unfold(0, M, 1)[:N]),
        with_vectors,
    ),
    strided_bias=(
        lambda s, a, b: F.silu(s + b.as_strided((N, M), (1, 1)) * a.as_strided((N, M), (0, 1))),
        with_vectors,
    ),
    heads_apart=(lambda s: torch.cat([F.silu(s[:, -9:1]), F.gelu(s[:, 1:])], 1), qkv),
    heads_stacked=(
        lambda s: torch.stack([f(s[:, i]) for i, f in enumerate((F.relu, torch.tanh))], 1),
        qkv,
    ),
    empty_in_cat=(lambda s: torch.cat([torch.empty(0), F.silu(s)], -1), qkv),
)


table(
    nothing,
    heads_in_rows=(
        lambda q, k, v: (F.silu(q.reshape(B, 2, 2 * N, D) @ k.mT) @ v).view(B, 2, 2, N, D),
        grouped,
    ),
    one_tensor=(lambda q, k, v: F.silu(q @ q.mT) @ q, qkv),
    keys_are_values=(lambda q, k, v: F.elu(q @ k.mT, 0.3) @ k, qkv),
)


CASES += [*((activation_of_infinities(act), qkv) for act in ACTS)]


CASES += [*((specials_through(act), special) for act in ACTS)]
