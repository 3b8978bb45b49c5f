"""The CPU kernel's operators, known to torch as soon as the package is imported.

Packages of AOTInductor and saved functions look their operators up when they are loaded. What runs
an operator is imported at its first call.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from .ops import Arguments, Signature, fake_gradients, fake_output

_LIBRARY = torch.library.Library("gdpa", "FRAGMENT")
# skip: leave out blocks where all scores are masked
CPU_FORWARD = Signature("attention_cpu", keywords=("skip",))
CPU_BACKWARD = Signature("attention_cpu_backward", backward=True, keywords=("skip",))


def _lowering() -> Any:
    return importlib.import_module(f"{__package__}.lowerings.blocked")


def _forward(given: Arguments[torch.Tensor]) -> torch.Tensor:
    return _lowering().forward_on_cpu(given)  # type: ignore[no-any-return]


def _backward(given: Arguments[torch.Tensor]) -> list[torch.Tensor]:
    return _lowering().backward_on_cpu(given)  # type: ignore[no-any-return]


CPU_FORWARD.register(_LIBRARY, "CPU", _forward, fake_output)
CPU_BACKWARD.register(_LIBRARY, "CPU", _backward, fake_gradients)
