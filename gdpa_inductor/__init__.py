"""Softmax-free attention, found by the compiler: `torch.compile(model, backend="gdpa")`."""

from __future__ import annotations

from . import ops as ops

__version__ = "0.1.0"
