"""Autograd: its graph, views and versions, and the modes of a thread that it reads.

The modes are gradient mode, autocast, inference mode, function transforms and dispatch modes.
`restored_state` and `plain_torch` are contexts that set them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def gradient_edge(tensor: torch.Tensor) -> tuple[Any, int]:
    """The place of a tensor in autograd's graph: its node and which result; a leaf's identity."""
    return (None, id(tensor)) if tensor.grad_fn is None else (tensor.grad_fn, tensor.output_nr)


def leaf_of(node: Any) -> tuple[Any, int] | None:
    """The place of the leaf whose gradient a node of autograd's graph adds to."""
    variable = getattr(node, "variable", None)
    return (None, id(variable)) if isinstance(variable, torch.Tensor) else None


def is_of_user(node: Any) -> bool:
    """Whether a node of autograd's graph is an autograd function, and not an operator's own."""
    of_operator = type(node).__name__.startswith("GeneratedBackwardFor_")
    return isinstance(node, torch.autograd.function.BackwardCFunction) and not of_operator


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that a view is a view of, for autograd."""
    return tensor._base


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd follows the tensor as a view of another."""
    return tensor._is_view()


def is_leaf(tensor: torch.Tensor) -> bool:
    """`Tensor.is_leaf`; no view whose base was changed in another gradient mode is one."""
    try:
        return tensor.is_leaf
    except RuntimeError:  # such a view may not be passed to any operation
        return False


def is_fragile_view(tensor: torch.Tensor) -> bool:
    """A view made under `no_grad`, which must not be written into where gradients flow."""
    creation = torch._C._autograd.CreationMeta
    return tensor._is_view() and torch._C._autograd._get_creation_meta(tensor) != creation.DEFAULT


def version_of(tensor: torch.Tensor) -> int:
    """How many writes autograd has seen."""
    return 0 if tensor.is_inference() else tensor._version


def has_tangent(tensor: torch.Tensor) -> bool:
    """Whether forward-mode differentiation follows a tensor."""
    # Asked about an inference tensor, torch fails, and dispatches wrongly afterwards.
    if tensor.is_inference() or not _in_forward_mode():
        return False
    return torch._VF._unpack_dual(tensor, level=0).tangent is not None


def is_observed() -> bool:
    """Whether a mode sees each operator, or a function transform or forward-mode AD is active."""
    modes = torch._C._len_torch_dispatch_stack()
    return modes > 0 or _depth(torch._C._functorch) > 0 or _in_forward_mode()


def autocasts() -> list[tuple[str, torch.dtype]]:
    """The devices where autocast is on, with what it casts to."""
    return [
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]


@contextlib.contextmanager
def saved_tensor_hooks_set_aside() -> Iterator[None]:
    """A context in which the caller's saved-tensor hooks see nothing."""
    # Non-reentrant checkpointing counts by such hooks what a forward saves.
    stack = torch._C._autograd
    hook_pairs = []
    while (hooks := stack._top_saved_tensors_default_hooks(True)) is not None:
        stack._pop_saved_tensors_default_hooks()
        hook_pairs.append(hooks)
    try:
        yield
    finally:
        for hooks in reversed(hook_pairs):
            stack._push_saved_tensors_default_hooks(*hooks)


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """A context with ordinary tensors and torch's own kernels, whatever modes are active."""
    from torch.utils._python_dispatch import _disable_current_modes

    with contextlib.ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autograd.set_detect_anomaly(False))  # it raises at NaN
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
        # oneDNN's activations have other values at infinity, on some CPUs.
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)
        yield


@contextlib.contextmanager
def restored_state() -> Iterator[None]:
    """A context that restores modes, transforms and random numbers, also after an exception.

    Dispatch modes of the caller are disabled inside.
    """
    from torch._C import _functorch
    from torch.utils._python_dispatch import _disable_current_modes

    devices = ("cpu", "cuda")
    grad, cache = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
    casts = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    level, forward, nesting = _depth(_functorch), _in_forward_mode(), _autocast_nesting()
    with _disable_current_modes():
        generator = torch.get_rng_state()
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
        with _disable_current_modes():  # fakes of the caller refuse real tensors
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


def backward_runs_once() -> bool:
    """Whether a backward is running that frees what its graph has saved."""
    return not torch._C._autograd._get_current_graph_task_keep_graph()
