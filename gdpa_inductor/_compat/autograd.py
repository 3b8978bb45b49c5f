"""Autograd: its graph, views and versions, and the switches of the thread that it reads.

`restored_state` and `plain_torch` set those switches for a while: gradient mode, autocast,
inference mode, function transforms and dispatch modes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def gradient_edge(tensor: torch.Tensor) -> tuple[Any, int]:
    """The place of a tensor in the graph of autograd: its node, and the number of the result; of a
    leaf, its identity.
    """
    return (None, id(tensor)) if tensor.grad_fn is None else (tensor.grad_fn, tensor.output_nr)


def leaf_of(node: Any) -> tuple[Any, int] | None:
    """The place of the leaf whose gradient a node of autograd's graph adds to."""
    held = getattr(node, "variable", None)
    return (None, id(held)) if isinstance(held, torch.Tensor) else None


def is_of_user(node: Any) -> bool:
    """Whether a node of autograd's graph is an autograd function, and not an operator's own."""
    made_for_operator = type(node).__name__.startswith("GeneratedBackwardFor_")
    return isinstance(node, torch.autograd.function.BackwardCFunction) and not made_for_operator


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd follows the tensor as a view of another."""
    return tensor._is_view()


def is_leaf(tensor: torch.Tensor) -> bool:
    """`Tensor.is_leaf`, also of a view whose base was changed in another gradient mode, where torch
    raises. No operation made such a view, and none may be given it: it counts as a result.
    """
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def is_fragile_view(tensor: torch.Tensor) -> bool:
    """A view made under `no_grad`, which must not be written into where gradients flow."""
    made = torch._C._autograd.CreationMeta
    return tensor._is_view() and torch._C._autograd._get_creation_meta(tensor) != made.DEFAULT


def version_of(tensor: torch.Tensor) -> int:
    """How many writes autograd has seen."""
    return 0 if tensor.is_inference() else tensor._version


def has_tangent(tensor: torch.Tensor) -> bool:
    """Whether forward-mode differentiation follows a tensor. Asked of an inference tensor, torch
    fails, and dispatches wrongly from then on.
    """
    if tensor.is_inference() or not _in_forward_mode():
        return False
    return torch._VF._unpack_dual(tensor, level=0).tangent is not None


def autocasts() -> bool:
    """Whether operators cast what they are given."""
    return any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


@contextlib.contextmanager
def saved_tensor_hooks_set_aside() -> Iterator[None]:
    """Saved-tensor hooks of the caller do not see what is computed meanwhile. Non-reentrant
    checkpointing counts by them what a forward saves.
    """
    stack = torch._C._autograd
    found = []
    while (hooks := stack._top_saved_tensors_default_hooks(True)) is not None:
        stack._pop_saved_tensors_default_hooks()
        found.append(hooks)
    try:
        yield
    finally:
        for hooks in reversed(found):
            stack._push_saved_tensors_default_hooks(*hooks)


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """Ordinary tensors and torch's own loops, whatever modes the interpretation is in. oneDNN's
    activations have other values at infinity, some CPUs' only.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    with contextlib.ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)
        yield


@contextlib.contextmanager
def restored_state() -> Iterator[None]:
    """Gradient, autocast, inference and forward modes, open transforms and random numbers as
    before, also where the body raises. Active modes of the caller are set aside meanwhile.
    """
    from torch._C import _functorch
    from torch.utils._python_dispatch import _disable_current_modes

    devices = ("cpu", "cuda")
    grad, cache = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
    casts = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    level, generator = _depth(_functorch), torch.get_rng_state()
    forward = _in_forward_mode()
    nesting = _autocast_nesting()
    try:
        with _disable_current_modes():
            torch.set_autocast_cache_enabled(False)
            yield
    finally:
        while _depth(_functorch) > level:
            _functorch.pop_dynamic_layer_stack()
        if _in_forward_mode() and not forward:
            torch._C._exit_dual_level(level=0)
        for device, enabled, dtype in casts:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        while _autocast_nesting() > nesting:
            torch.autocast_decrement_nesting()
        torch.set_autocast_cache_enabled(cache)
        torch.set_grad_enabled(grad)
        if not torch.equal(torch.get_rng_state(), generator):
            torch.set_rng_state(generator)


def _depth(functorch: Any) -> int:
    stack = functorch.get_interpreter_stack()
    return 0 if stack is None else len(stack)


def _in_forward_mode() -> bool:
    """Whether a level of forward-mode differentiation is open; torch has one only."""
    try:
        torch._C._exit_dual_level(level=torch._C._enter_dual_level())
    except RuntimeError:  # "nested"
        return True
    return False


def _autocast_nesting() -> int:
    count = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return int(count)


@contextlib.contextmanager
def keep_saved_buffers(on: bool = True) -> Iterator[None]:
    """Compile backwards that may run again over one forward: they do not reuse saved buffers."""
    from torch._functorch import config

    with config.patch(donated_buffer=False) if on else contextlib.nullcontext():
        yield


def backward_runs_once() -> bool:
    """Whether a backward is under way, after which nobody needs what its graph has saved."""
    return not torch._C._autograd._get_current_graph_task_keep_graph()
