"""The activations of the literature on attention without softmax: in torch, and as score programs.

Kernels are held to the error rule with each of them, on a CPU (`lowerings/test_cpu.py`) and on GPUs
(`gpu/test_kernels.py`). How models spell them is `patterns/activations_table.py`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Activation(NamedTuple):
    """program: of the score s."""

    function: Callable[[Tensor], Tensor]
    program: str


ACTIVATIONS = {
    "identity": Activation(lambda s: s * 1.5, "mul(s,1.5)"),
    "gelu": Activation(F.gelu, "gelu(s)"),
    "gelu_tanh": Activation(lambda s: F.gelu(s, approximate="tanh"), "gelu_tanh(s)"),
    "silu": Activation(F.silu, "silu(s)"),
    "relu": Activation(F.relu, "relu(s)"),
    "relu_squared": Activation(lambda s: F.relu(s).square(), "pow(relu(s),2.0)"),
    "relu6": Activation(F.relu6, "hardtanh(s,0.0,6.0)"),
    "leaky_relu": Activation(F.leaky_relu, "leaky_relu(s,0.01)"),
    "hardswish": Activation(F.hardswish, "hardswish(s)"),
    "hardsigmoid": Activation(F.hardsigmoid, "hardsigmoid(s)"),
    "sigmoid": Activation(torch.sigmoid, "sigmoid(s)"),
    "laplace": Activation(
        lambda s: 0.5 * (1 + torch.erf((s - 0.5) / 0.25)),
        "mul(0.5,add(1.0,erf(div(sub(s,0.5),0.25))))",
    ),
    "tanh": Activation(torch.tanh, "tanh(s)"),
    "elu_plus_1": Activation(lambda s: F.elu(s) + 1, "add(elu(s,1.0,1.0,1.0),1.0)"),
    "softplus": Activation(F.softplus, "softplus(s,1.0,20.0)"),
    "exp": Activation(torch.exp, "exp(s)"),
    "mish": Activation(F.mish, "mish(s)"),
    "quick_gelu": Activation(
        lambda s: s * torch.sigmoid(1.702 * s), "mul(s,sigmoid(mul(1.702,s)))"
    ),
    "logsigmoid": Activation(F.logsigmoid, "neg(softplus(neg(s),1.0,20.0))"),
}
