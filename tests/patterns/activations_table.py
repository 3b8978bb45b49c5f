"""The activations, in the spellings of real code; each row is attention with that activation."""

import math

import torch
import torch.nn.functional as F

from tests.patterns.rows import HEADS, fuse


def _register(name: str, act) -> None:
    def attention(q, k, v):
        return act(q @ k.mT) @ v

    attention.__name__ = name
    fuse(**HEADS)(attention)


def silu_inplace(s):
    return F.silu(s, inplace=True)


def relu_inplace_method(s):
    return s.relu_()


def gelu_tanh_by_hand(s):
    inner = math.sqrt(2 / math.pi) * (s + 0.044715 * torch.pow(s, 3.0))
    return 0.5 * s * (1.0 + torch.tanh(inner))


def laplace(s):
    return (1 + torch.erf((s - 0.707107) / (0.282095 * math.sqrt(2.0)))) * 0.5


def laplace_other_constants(s):
    return 0.5 * (1.0 + torch.erf((s - math.sqrt(0.5)).div(0.39894)))


def laplace_in_place(s):
    return s.sub(0.707107).div_(0.282095 * math.sqrt(2)).erf_().add_(1.0).mul_(0.5)


def straight_piecewise(s):
    return torch.where(s > 1, s, torch.where(s < -1, 0.1 * s, s * s))


def helper_functions(s):
    def gate(x):
        return torch.sigmoid(1.5 * x)

    return gate(s) * s + 0.1 * gate(-s)


ACTIVATIONS = {
    "silu": F.silu,
    "silu_module": torch.nn.SiLU(),
    "silu_inplace": silu_inplace,
    "silu_as_x_sigmoid_x": lambda s: s * torch.sigmoid(s),
    "silu_as_sigmoid_x_x": lambda s: s.sigmoid() * s,
    "silu_as_quotient": lambda s: s / (1 + torch.exp(-s)),
    "quick_gelu": lambda s: s * torch.sigmoid(1.702 * s),
    "gelu": F.gelu,
    "gelu_module_tanh": torch.nn.GELU(approximate="tanh"),
    "gelu_tanh": lambda s: F.gelu(s, approximate="tanh"),
    "gelu_by_hand": lambda s: s * 0.5 * (1.0 + torch.erf(s / math.sqrt(2.0))),
    "gelu_tanh_by_hand": gelu_tanh_by_hand,
    "relu": torch.relu,
    "relu_inplace_method": relu_inplace_method,
    "relu_squared": lambda s: F.relu(s) ** 2,
    "relu_square": lambda s: torch.square(F.relu(s)),
    "relu_times_relu": lambda s: F.relu(s) * F.relu(s),
    "clamp_min_zero": lambda s: s.clamp(min=0),
    "clamp_both": lambda s: torch.clamp(s, -1.0, 2.0),
    "leaky_relu": F.leaky_relu,
    "leaky_relu_slope": lambda s: F.leaky_relu(s, 0.3),
    "hardswish": F.hardswish,
    "hardswish_by_hand": lambda s: s * F.relu6(s + 3.0) / 6.0,
    "relu6": F.relu6,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "square": lambda s: s**2,
    "cube": lambda s: s**3,
    "identity_scaled": lambda s: s * 0.25,
    "laplace": laplace,
    "laplace_other_constants": laplace_other_constants,
    "laplace_in_place": laplace_in_place,
    "softplus": F.softplus,
    "softplus_beta": lambda s: F.softplus(s, beta=2.0, threshold=3.0),
    "mish": F.mish,
    "elu_plus_one": lambda s: F.elu(s) + 1,
    "rrelu_in_evaluation": lambda s: F.rrelu(s, 0.1, 0.4),
    "rrelu_module_in_evaluation": torch.nn.RReLU().eval(),
    "rrelu_in_place": lambda s: F.rrelu_(s * 2.0, 0.1, 0.3),
    "elu_alpha": lambda s: F.elu(s, alpha=0.7),
    "celu": lambda s: F.celu(s, alpha=1.5),
    "selu": F.selu,
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "softshrink": lambda s: F.softshrink(s, 0.3),
    "absolute": torch.abs,
    "sine": torch.sin,
    "log_of_one_plus_relu": lambda s: torch.log1p(F.relu(s)),
    "root": lambda s: torch.sqrt(s * s + 1.0),
    "reciprocal": lambda s: torch.reciprocal(1 + s.square()),
    "two_branches": lambda s: 0.5 * F.gelu(s) + 0.5 * torch.tanh(s),
    "soft_cap": lambda s: 5.0 * torch.tanh(s / 5.0),
    "maximum_of_two": lambda s: torch.maximum(s, 0.2 * s),
    "straight_piecewise": straight_piecewise,
    "helper_functions": helper_functions,
    "chain_of_three": lambda s: torch.tanh(F.silu(s * 2.0) + 0.5) * 3.0,
}

for _name, _act in ACTIVATIONS.items():
    _register(f"act_{_name}", _act)
