"""Private torch symbols of the judge. Checked on torch 2.11.0 and 2.13.0."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["HigherOrderOperator"]


def op_name(op: Any) -> str:
    """The short name of an operator: "masked_fill_" of `aten.masked_fill_.Scalar`."""
    packet = getattr(op, "overloadpacket", op)
    return str(getattr(packet, "__name__", packet))


def asked(question: OpOverload, tensor: torch.Tensor) -> Any:
    """What a tensor says of itself. A fake knows its device without being dispatched."""
    return device_of(tensor) if question is torch.ops.prim.device.default else question(tensor)


def device_of(tensor: torch.Tensor) -> torch.device:
    """Where a tensor is. Asked for its `device`, a fake would ask the active modes."""
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


@functools.cache
def is_composite(op: Any) -> bool:
    """An operator that is defined by others, below autograd too."""
    return (
        isinstance(op, OpOverload)
        and op.namespace == "aten"
        and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    )


@functools.cache
def writes_first(op: Any) -> bool:
    """Whether an operator changes its first argument."""
    first = op._schema.arguments[:1]
    return bool(first) and first[0].alias_info is not None and first[0].alias_info.is_write


def storage_address(storage: torch.UntypedStorage) -> int:
    """What tells two living storages apart."""
    return storage._cdata


def constant_of(value: Any) -> Any:
    """The value of a fake tensor of one element that is known to hold a constant, or None."""
    held = getattr(value, "constant", None)
    return element_of(held) if isinstance(held, torch.Tensor) and held.numel() == 1 else None


def element_of(tensor: torch.Tensor) -> Any:
    """The element of a real tensor, whatever modes are active."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return tensor.item()


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The elements of a real tensor on the CPU. NumPy would do, but torch needs none."""
    held = tensor.contiguous()
    return ctypes.string_at(held.data_ptr(), held.nbytes)


def cache_folder() -> str | None:
    """Where torch keeps compiled graphs; None where such caches are off."""
    from torch._inductor import config
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return cache_dir() if config.fx_graph_cache and not config.force_disable_caches else None


def holds_subclass(types: Sequence[type]) -> bool:
    """Whether a call is given tensors that are made of others, such as nested ones."""
    from torch._subclasses.fake_tensor import FakeTensor

    known = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
    return any(t not in known for t in types)


def parts_of(value: Any) -> Any:
    """The tensors that a tensor is made of; anything else as it is."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if not is_traceable_wrapper_subclass(value):
        return value
    names, _ = value.__tensor_flatten__()
    return [parts_of(getattr(value, name)) for name in names]


def own_fake_mode() -> Any:
    """A fake mode with symbols of its own."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shapes = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    return FakeTensorMode(shape_env=shapes, static_shapes=True)


def hint_of(number: Any) -> Any:
    """A symbolic number at its hint, a plain one as it is; None for a symbol without a hint."""
    node = getattr(number, "node", None)
    if node is None or not isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return number
    hint = node.hint if node.has_hint() else None
    if hint is not None:
        return hint
    expression = node.expr
    return int(expression) if expression.is_number else None


def real_input(node: torch.fx.Node) -> Any:
    """The value that a placeholder was captured with, if Dynamo still holds it."""
    graph_input = node.meta.get("grapharg")
    try:
        return None if graph_input is None else graph_input.example
    except (AssertionError, AttributeError):
        return None


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


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """Ordinary tensors, whatever modes the interpretation is in."""
    from torch.utils._python_dispatch import _disable_current_modes

    with contextlib.ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def autocasts() -> bool:
    """Whether operators cast what they are given."""
    return any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


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


def gradient_edge(tensor: torch.Tensor) -> tuple[Any, int]:
    """The place of a tensor in the graph of autograd: its node, and the number of the result; of a
    leaf, its identity.
    """
    return (None, id(tensor)) if tensor.grad_fn is None else (tensor.grad_fn, tensor.output_nr)


def leaf_of(node: Any) -> tuple[Any, int] | None:
    """The place of the leaf whose gradient a node of autograd's graph adds to."""
    held = getattr(node, "variable", None)
    return (None, id(held)) if isinstance(held, torch.Tensor) else None


def has_tangent(tensor: torch.Tensor) -> bool:
    """Whether forward-mode differentiation follows a tensor. Asked of an inference tensor, torch
    fails, and dispatches wrongly from then on.
    """
    if tensor.is_inference() or not _in_forward_mode():
        return False
    return torch._VF._unpack_dual(tensor, level=0).tangent is not None


def is_of_user(node: Any) -> bool:
    """Whether a node of autograd's graph is an autograd function, and not an operator's own."""
    made_for_operator = type(node).__name__.startswith("GeneratedBackwardFor_")
    return isinstance(node, torch.autograd.function.BackwardCFunction) and not made_for_operator


@functools.cache
def is_random(op: Any) -> bool:
    """An operator that draws from a generator."""
    return isinstance(op, OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


def is_fragile_view(tensor: torch.Tensor) -> bool:
    """A view made under `no_grad`, which must not be written into where gradients flow."""
    made = torch._C._autograd.CreationMeta
    return tensor._is_view() and torch._C._autograd._get_creation_meta(tensor) != made.DEFAULT


def version_of(tensor: torch.Tensor) -> int:
    """How many writes autograd has seen."""
    return 0 if tensor.is_inference() else tensor._version
