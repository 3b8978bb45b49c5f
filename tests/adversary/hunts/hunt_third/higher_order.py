"""Checkpoints, vmap, cond and its like, autocast, custom operators, blocks of keys."""

from functools import partial

import torch
import torch.nn.functional as F
import torch.utils.checkpoint

from ..rows import (
    Programs,
    ikv,
    normal,
    nothing,
    of_scores,
    plus,
    values,
)

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table
checkpoint = partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)


def silu(q, k, v):
    return F.silu(q @ k.mT) @ v


@torch.library.custom_op("hunt_third::relu", mutates_args=())
def custom(x: torch.Tensor) -> torch.Tensor:
    return x.relu()


custom.register_fake(torch.empty_like)
custom.register_autograd(lambda ctx, g: g * 2, setup_context=lambda ctx, inputs, output: None)


def in_fp32(f):
    """The program that is `f` of the operands in fp32."""
    return lambda q, k, v, *more: f(q.float(), k.float(), v.float(), *more)


# Checkpoints


# Transforms, conditions and loops


table(
    nothing,
    cond_of_attention=(
        lambda q, k, v, flag: torch.cond(flag, silu, of_scores(F.relu), (q, k, v)),
        ikv(),
        values(True),
    ),
)


# Autocast


@case(plus(ikv(), normal((5, 7), dtype=torch.float32)), of=in_fp32)
def autocast_with_bias_and_mask(q, k, v, bias):
    with torch.autocast("cpu", torch.bfloat16):
        s = q @ k.mT + bias
        s = torch.where(torch.ones(5, 7, dtype=torch.bool).tril(), s, float("-inf"))
        return torch.sigmoid(s) @ v


# Custom operators, and gradients asked for inside


# Writes to operands, loops over heads and blocks, and views of the result


@case(ikv(), of=of_scores)
def resized_mask(s):
    m = s.new_ones(5, 7)
    m.t_()
    return F.silu(s) * m.T
