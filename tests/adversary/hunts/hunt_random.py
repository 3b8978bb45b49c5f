"""Random numbers: what a region draws, or somebody beside it, is drawn all the same."""

import torch
import torch.nn.functional as F

from .rows import Programs, after, qkv32, scored

CASES = Programs()
case, table = CASES.case, CASES.table


@case(qkv32, of=scored)
def random_overwritten(s, v):
    w = torch.empty_like(s).uniform_()
    w.copy_(torch.relu(s))
    return (w @ v, torch.rand(3))


@case(qkv32, of=scored)
def random_bernoulli_zeroed(s, v):
    n = torch.bernoulli(s.detach().sigmoid()).zero_()
    return ((torch.relu(s) + n) @ v, torch.rand(3))


table(
    qkv32,
    of=scored,
    dead_sdpa=after(
        lambda s, v: F.scaled_dot_product_attention(s, s, s, dropout_p=0.5),
        lambda s, v: (torch.relu(s) @ v, torch.rand(3)),
    ),
    dead_gamma=after(
        lambda s, v: torch._standard_gamma(s.detach().abs() + 1),
        lambda s, v: (torch.relu(s) @ v, torch.rand(3)),
    ),
    dead_binomial=after(
        lambda s, v: torch.binomial(s.detach().abs().round() + 1, torch.full_like(s, 0.5)),
        lambda s, v: (torch.relu(s) @ v, torch.rand(3)),
    ),
    dead_rand_like=after(
        lambda s, v: torch.rand_like(s), lambda s, v: (torch.relu(s) @ v, torch.rand(3))
    ),
    dead_dirichlet=after(
        lambda s, v: torch._sample_dirichlet(s.detach().abs() + 1),
        lambda s, v: (torch.relu(s) @ v, torch.rand(3)),
    ),
    dead_fractional_pool=after(
        lambda s, v: F.fractional_max_pool2d(s, 2, output_size=(3, 3)),
        lambda s, v: (torch.relu(s) @ v, torch.rand(3)),
    ),
)


table(
    qkv32,
    random_zeros_like=scored(
        lambda s, v: ((torch.relu(s) + torch.zeros_like(F.dropout(s, 0.5))) @ v, torch.rand(3))
    ),
    random_shape_only=scored(
        lambda s, v: (torch.relu(s).view(torch.rand_like(s).shape) @ v, torch.rand(3))
    ),
    random_new_full=scored(
        lambda s, v: (torch.relu(s) * torch.rand_like(s).new_full(s.shape, 0.5) @ v, torch.rand(3))
    ),
    random_type_as=scored(
        lambda s, v: (torch.relu(s).type_as(torch.rand_like(s)) @ v, torch.rand(3))
    ),
)
