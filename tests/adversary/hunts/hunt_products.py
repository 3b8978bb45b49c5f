"""Products in strange writing, expanded operands, special values, dead parts of what is read."""

import torch
import torch.nn.functional as F

B, H, N, M, D = 2, 2, 6, 8, 4


def _made(*shapes, dtype=torch.float32):
    return tuple(torch.randn(*shape, dtype=dtype).requires_grad_() for shape in shapes)


def qkv():
    return _made((B, H, N, D), (B, H, M, D), (B, H, M, D))


def with_bias():
    return (*qkv(), *_made((H, N, M)))


def with_vectors():
    return (*qkv(), *_made((M,), (2 * M,)))


def grouped():
    return _made((B, 4, N, D), (B, 2, M, D), (B, 2, M, D))


def special():
    """No NaN among the scores: eager's own vectors and single elements differ in gradients there
    (elu, hardswish, softshrink, hardshrink).
    """
    q, k, v = (x.detach().clone() for x in qkv())
    q[0, 0, 0, 0], q[1, 1, 1] = torch.inf, 1e30
    q[0, 1, 3], k[1, 0, 0], v[0, 0, 1, 0] = -0.0, 1e-40, -0.0
    return tuple(x.requires_grad_() for x in (q, k, v))


def einsum_broadcast(q, k, v, b):
    return torch.einsum("hnm,bhmd->bnhd", torch.relu(torch.einsum("bhnd,hmd->hnm", q, k[0]) + b), v)


def einsum_keys_first(q, k, v, b):
    s = torch.einsum("bhmd,bhnd->bmhn", k, q)
    return torch.einsum("bmhn,bhmd->dnhb", F.silu(s + b.permute(2, 0, 1)), v)


def einsum_ellipsis(q, k, v, b):
    return torch.einsum("...nm,...md->...dn", F.gelu(torch.einsum("...nd,...md->...nm", q, k)), v)


def einsum_groups(q, k, v):
    q = q.view(B, 2, 2, N, D)
    s = torch.einsum("bgrnd,bgmd->bgrnm", q, k)
    return torch.einsum("bgrnm,bgmd->bnrgd", F.silu(s), v)


def heads_in_rows(q, k, v):
    s = q.reshape(B, 2, 2 * N, D) @ k.mT
    return (F.silu(s) @ v).view(B, 2, 2, N, D)


def groups_repeated(q, k, v):
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    return F.silu(q @ k.mT) @ v


def groups_tiled(q, k, v):
    k, v = (x.repeat(1, 2, 1, 1) for x in (k, v))
    return F.silu(q @ k.mT) @ v


def groups_expanded_inside(q, k, v):
    k, v = (x[:, None].expand(B, 2, 2, M, D).reshape(B, 4, M, D) for x in (k, v))
    return F.silu(q @ k.mT) @ v


def expanded_batches(q, k, v, b):
    k, v = k[:1].expand(B, H, M, D), v[:, :1].expand(B, H, M, D)
    s = torch.bmm(q.reshape(-1, N, D), k.reshape(-1, M, D).mT).view(B, H, N, M)
    return F.relu(s + b) @ v


def rows_flipped(q, k, v, b):
    return (F.silu(q.flip(2) @ k.mT + b.flip(-1)) @ v).flip(2)


def diagonal_bias(q, k, v, a, b):
    return F.silu(q @ k.mT + torch.diag_embed(a)[:N] + b.unfold(0, M, 1)[:N]) @ v


def strided_bias(q, k, v, a, b):
    return F.silu(q @ k.mT + b.as_strided((N, M), (1, 1)) * a.as_strided((N, M), (0, 1))) @ v


def bias_of_beta_zero(q, k, v, b):
    s = torch.baddbmm(b, q[0], k[0].mT, beta=0)
    return F.silu(s) @ v[0] + 0 * b.sum()


# Open: eager gives the bias zeros, the rewrite none; the judge refuses it. No case yet.
def bias_of_beta_zero_alone(q, k, v, b):
    return F.silu(torch.baddbmm(b * 1, q[0], k[0].mT, beta=0, alpha=0.5)) @ v[0]


def bias_overwritten(q, k, v, b):
    x = b * 1.0
    s = q[0] @ k[0].mT
    x.copy_(s)
    return F.silu(x) @ v[0]


def heads_apart(q, k, v):
    s = q @ k.mT
    return torch.cat([F.silu(s[:, -9:1]), F.gelu(s[:, 1:])], 1) @ v


def heads_stacked(q, k, v):
    s = q @ k.mT
    return torch.stack([f(s[:, i]) for i, f in enumerate((F.relu, torch.tanh))], 1) @ v


def empty_in_cat(q, k, v):
    return torch.cat([torch.empty(0), F.silu(q @ k.mT)], -1) @ v


def one_tensor(q, k, v):
    return F.silu(q @ q.mT) @ q


def keys_are_values(q, k, v):
    return F.elu(q @ k.mT, 0.3) @ k


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
CASES = [
    (einsum_broadcast, with_bias), (einsum_keys_first, with_bias), (einsum_ellipsis, with_bias),
    (einsum_groups, grouped), (heads_in_rows, grouped), (groups_repeated, grouped),
    (groups_tiled, grouped), (groups_expanded_inside, grouped), (expanded_batches, with_bias),
    (rows_flipped, with_bias), (diagonal_bias, with_vectors), (strided_bias, with_vectors),
    (bias_of_beta_zero, with_bias),
    (bias_overwritten, with_bias), (heads_apart, qkv), (heads_stacked, qkv), (empty_in_cat, qkv),
    (one_tensor, qkv), (keys_are_values, qkv),
    *((activation_of_infinities(act), qkv) for act in ACTS),
    *((specials_through(act), special) for act in ACTS),
]  # fmt: skip
