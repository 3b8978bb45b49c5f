"""What seeds of the adversary have found, made small."""

import torch
import torch.nn.functional as F


def log_sigmoid_times_infinity(q, k, v, weight):
    """Seed 42336: the gradient of q is infinite, and no NaN."""
    return (F.logsigmoid(q @ k.mT) * weight) @ v


def with_infinity():
    made = tuple(torch.randn(2, 1, 6, 4).requires_grad_() for _ in range(3))
    weight = torch.ones(6, 6)
    weight[1, 1] = float("inf")
    return (*made, weight)


CASES = [(log_sigmoid_times_infinity, with_infinity)]
