"""Random numbers: what a region draws, or somebody beside it, is drawn all the same."""

import torch
import torch.nn.functional as F

from .rows import Programs, qkv32, scored

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


@case(qkv32, of=scored)
def dead_sdpa(s, v):
    F.scaled_dot_product_attention(s, s, s, dropout_p=0.5)
    return (torch.relu(s) @ v, torch.rand(3))


@case(qkv32, of=scored)
def dead_gamma(s, v):
    torch._standard_gamma(s.detach().abs() + 1)
    return (torch.relu(s) @ v, torch.rand(3))


@case(qkv32, of=scored)
def dead_binomial(s, v):
    torch.binomial(s.detach().abs().round() + 1, torch.full_like(s, 0.5))
    return (torch.relu(s) @ v, torch.rand(3))


@case(qkv32, of=scored)
def dead_rand_like(s, v):
    torch.rand_like(s)
    return (torch.relu(s) @ v, torch.rand(3))


@case(qkv32, of=scored)
def dead_dirichlet(s, v):
    torch._sample_dirichlet(s.detach().abs() + 1)
    return (torch.relu(s) @ v, torch.rand(3))


@case(qkv32, of=scored)
def dead_fractional_pool(s, v):
    F.fractional_max_pool2d(s, 2, output_size=(3, 3))
    return (torch.relu(s) @ v, torch.rand(3))


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
