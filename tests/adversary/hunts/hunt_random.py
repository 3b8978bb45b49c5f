"""Random numbers: what a region draws, or somebody beside it, is drawn all the same."""

import torch
import torch.nn.functional as F

from .rows import Programs, qkv32

CASES = Programs()
case, table = CASES.case, CASES.table


@case(qkv32)
def random_overwritten(q, k, v):
    s = q @ k.mT
    w = torch.empty_like(s).uniform_()
    w.copy_(torch.relu(s))
    return (w @ v, torch.rand(3))


@case(qkv32)
def random_zeros_like(q, k, v):
    s = q @ k.mT
    w = torch.relu(s) + torch.zeros_like(F.dropout(s, 0.5))
    return (w @ v, torch.rand(3))


@case(qkv32)
def random_bernoulli_zeroed(q, k, v):
    s = q @ k.mT
    n = torch.bernoulli(s.detach().sigmoid()).zero_()
    return ((torch.relu(s) + n) @ v, torch.rand(3))


@case(qkv32)
def random_shape_only(q, k, v):
    s = q @ k.mT
    n = torch.rand_like(s)
    return (torch.relu(s).view(n.shape) @ v, torch.rand(3))


@case(qkv32)
def random_new_full(q, k, v):
    s = q @ k.mT
    n = torch.rand_like(s).new_full(s.shape, 0.5)
    return (torch.relu(s) * n @ v, torch.rand(3))


@case(qkv32)
def random_type_as(q, k, v):
    s = q @ k.mT
    return (torch.relu(s).type_as(torch.rand_like(s)) @ v, torch.rand(3))


@case(qkv32)
def dead_sdpa(q, k, v):
    s = q @ k.mT
    F.scaled_dot_product_attention(s, s, s, dropout_p=0.5)
    return (torch.relu(s) @ v, torch.rand(3))


@case(qkv32)
def dead_gamma(q, k, v):
    s = q @ k.mT
    torch._standard_gamma(s.detach().abs() + 1)
    return (torch.relu(s) @ v, torch.rand(3))


@case(qkv32)
def dead_binomial(q, k, v):
    s = q @ k.mT
    torch.binomial(s.detach().abs().round() + 1, torch.full_like(s, 0.5))
    return (torch.relu(s) @ v, torch.rand(3))


@case(qkv32)
def dead_rand_like(q, k, v):
    s = q @ k.mT
    torch.rand_like(s)
    return (torch.relu(s) @ v, torch.rand(3))


@case(qkv32)
def dead_dirichlet(q, k, v):
    s = q @ k.mT
    torch._sample_dirichlet(s.detach().abs() + 1)
    return (torch.relu(s) @ v, torch.rand(3))


@case(qkv32)
def dead_fractional_pool(q, k, v):
    s = q @ k.mT
    F.fractional_max_pool2d(s, 2, output_size=(3, 3))
    return (torch.relu(s) @ v, torch.rand(3))
