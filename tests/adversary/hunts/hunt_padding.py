"""Activations that are infinite, or infinitely steep, at the scores of padding."""

import fbgemm_gpu  # noqa: F401
import torch

pad = torch.ops.fbgemm.jagged_to_padded_dense
unpad = torch.ops.fbgemm.dense_to_jagged


def _attention(activation):
    def attention(q, k, v, offsets):
        q, k, v = (pad(x, [offsets], [5], 0.0) for x in (q, k, v))
        return unpad(activation(q @ k.mT) @ v, [offsets], 9)[0]

    attention.__name__ = activation.__name__
    return attention


def reciprocal(s):
    return torch.reciprocal(s)


def log_of_size(s):
    return torch.log(s.abs())


def rsqrt_of_size(s):
    return torch.rsqrt(s.abs())


def signed_root(s):
    return s.sign() * s.abs().sqrt()


def operands():
    offsets = torch.tensor([0, 2, 5, 9])
    return (*(torch.randn(9, 4).requires_grad_() for _ in range(3)), offsets)


CASES = [
    (_attention(activation), operands)
    for activation in (reciprocal, log_of_size, rsqrt_of_size, signed_root)
]
