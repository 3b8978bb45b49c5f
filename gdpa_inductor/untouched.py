"""Run a model and restore everything that it may change.

In: a function or a module and its arguments. These are restored: tensors and their gradients,
attributes of modules, training mode, and the states of random number generators. Tensors are
parameters, buffers, arguments, and tensors in a closure.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ._compat import fx, subclasses


@contextlib.contextmanager
def untouched(target: Any, *arguments: Any) -> Iterator[None]:
    """A context that restores `target` and `arguments` on exit."""
    modules = _modules(target, arguments)
    tensors = _tensors(target, arguments, modules)
    attributes = [(vars(m), _copied(vars(m))) for m in modules]
    owned = [t for t in tensors if not (t.is_inference() or t.is_meta)]
    contents = [
        (part, part.clone()) for t in owned for part in subclasses.strided_parts(t.detach())
    ]
    gradients = [
        (t, t.grad, t.grad.clone()) if t.grad is not None else (t, None, None)
        for t in tensors
        if t.is_leaf
    ]
    try:
        with _generators(tensors):
            yield
    finally:
        for now, before in attributes:
            now.clear()
            now.update(before)
        for tensor, saved in contents:
            # Not by the version counter: batch norm writes its statistics without counting.
            if not torch.equal(tensor, saved):
                tensor.data.copy_(saved)
        for tensor, grad, saved_grad in gradients:
            tensor.grad = grad
            if grad is not None and saved_grad is not None:
                grad.data.copy_(saved_grad)


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    """A module's attributes. Its dicts of parameters, buffers and modules are copied, to restore
    them.
    """
    return {
        name: type(x)(x) if name.startswith("_") and type(x) is dict else x
        for name, x in attributes.items()
    }


def _reachable(target: Any, arguments: Any) -> list[Any]:
    """The target, the objects in its closure or its bound self, and every argument."""
    function = getattr(target, "__func__", target)
    cells = getattr(function, "__closure__", None) or ()
    contents = [cell.cell_contents for cell in cells if cell != type(cell)()]
    return [target, getattr(target, "__self__", None), *contents, *fx.tree_leaves(arguments)]


def _modules(target: Any, arguments: Any) -> list[nn.Module]:
    outermost = [x for x in _reachable(target, arguments) if isinstance(x, nn.Module)]
    return list(dict.fromkeys(inner for outer in outermost for inner in outer.modules()))


def _tensors(target: Any, arguments: Any, modules: list[nn.Module]) -> list[Tensor]:
    tensors = [x for x in fx.tree_leaves(_reachable(target, arguments)) if isinstance(x, Tensor)]
    for module in modules:
        tensors += [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return list({id(t): t for t in tensors}.values())


@contextlib.contextmanager
def _generators(tensors: list[Tensor]) -> Iterator[None]:
    """Python's, NumPy's and torch's generators, on the CPU and on the devices of the tensors."""
    devices = {t.device.index for t in tensors if t.device.type == "cuda"}
    python, numpy = random.getstate(), sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
