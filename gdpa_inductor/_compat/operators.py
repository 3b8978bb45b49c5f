"""The dispatcher's operators: their classes, names, schemas and tags.

The classes are public in use and private in place. A schema says what an operator writes to, a tag
whether it draws random numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode"]


OpOverload, OpOverloadPacket = torch._ops.OpOverload, torch._ops.OpOverloadPacket
HigherOrderOperator = torch._ops.HigherOrderOperator


def strided_view(
    tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    """`as_strided` without the dispatcher and without gradients. offset: from the first element."""
    view: torch.Tensor = torch._C._dynamo.guards._reinterpret_tensor(tensor, size, stride, offset)
    return view


def define(
    library: torch.library.Library,
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    key: str = "CompositeExplicitAutograd",
    tags: Sequence[torch.Tag] = (torch.Tag.pt2_compliant_tag,),
    backward: Callable[..., Any] | None = None,
    save: Callable[..., None] | None = None,
) -> None:
    """Define an operator: `run` is for the dispatch key, `fake` for fake tensors.

    backward, save: As `register_autograd` of torch.library takes them.
    """
    name = schema.partition("(")[0]
    library.define(schema, tags=tags)
    library.impl(name, run, key)
    # `register_fake` of torch.library looks for its caller through the sources of all modules, for
    # a tenth of a second.
    entry = torch._library.simple_registry.singleton.find(f"{library.ns}::{name}")
    entry.fake_impl.register(fake, fake.__module__, lib=library)
    if backward is not None:
        name = f"{library.ns}::{name}"
        torch.library.register_autograd(name, backward, setup_context=save, lib=library)


def op_name(op: Any) -> str:
    """The short name of an operator: "masked_fill_" of `aten.masked_fill_.Scalar`."""
    packet = getattr(op, "overloadpacket", op)
    return str(getattr(packet, "__name__", packet))


def schema_of(op: Any) -> Any:
    """The declaration of an overload."""
    return op._schema


def qualified_name(packet: Any) -> str:
    """The "aten::add" of a packet of overloads; "" for anything else."""
    return str(getattr(packet, "_qualified_op_name", ""))


def overload_name(op: Any) -> str:
    """The "Tensor" of `aten.add.Tensor`; "" for what is no overload."""
    return str(getattr(op, "_overloadname", ""))


@functools.cache
def aten_overloads(name: str) -> tuple[Any, ...]:
    """ATen's functions of a name."""
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
    if not isinstance(packet, OpOverloadPacket):  # `torch.ops.aten.__eq__` is of the namespace
        return ()
    return tuple(getattr(packet, overload) for overload in packet.overloads())


@functools.cache
def is_composite(op: Any) -> bool:
    """An operator that is defined by others, below autograd too."""
    return (
        isinstance(op, OpOverload)
        and op.namespace == "aten"
        and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    )


@functools.cache
def has_autocast(op: Any, device: str) -> bool:
    """Whether autocast casts the arguments of an operator; else those of what it is made of."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), f"Autocast{device.upper()}")


@functools.cache
def writes_first(op: Any) -> bool:
    """Whether an operator changes its first argument."""
    first = op._schema.arguments[:1]
    return bool(first) and first[0].alias_info is not None and first[0].alias_info.is_write


@functools.cache
def is_random(op: Any) -> bool:
    """Whether an operator draws from a generator, as its tags say."""
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


def draws(op: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether a call with these arguments draws from a generator."""
    return is_random(op) and not is_idle(op, arguments)


def is_idle(op: Any, arguments: Mapping[str, Any]) -> bool:
    """A call of a random operator that draws nothing: rrelu in evaluation keeps its noise."""
    return op_name(op).startswith("rrelu_with_noise") and arguments["training"] is False


def is_pointwise(name: str) -> bool:
    """Whether ATen's functions of a name act element by element."""
    return any(torch.Tag.pointwise in op.tags for op in aten_overloads(name))
