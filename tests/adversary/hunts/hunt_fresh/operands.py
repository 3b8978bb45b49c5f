"""What the programs of this folder are given, and how they transpose."""

import torch

from ..rows import square

frozen = square(n=5, grad=False)
fp64 = square(n=5)


def rounded(dtype):
    """Drawn in fp64 and rounded."""
    return lambda: tuple(x.to(dtype).requires_grad_() for x in frozen())


fp32, bf16 = rounded(torch.float32), rounded(torch.bfloat16)


def T(x):
    return x.transpose(-1, -2)


def of_scores(f):
    """The program whose weights are `f` of the scores and of what follows the value."""
    return lambda q, k, v, *more: f(q @ T(k), *more) @ v


def scored(f):
    """The program that is `f` of the scores, the value and what follows it."""
    return lambda q, k, v, *more: f(q @ T(k), v, *more)


def weighted(act):
    """The same of the weights, which are `act` of the scores."""
    return lambda f: scored(lambda s, *more: f(act(s), *more))


def attended(act):
    """The same of the output, without the value."""
    return lambda f: scored(lambda s, v, *more: f(act(s) @ v, *more))
