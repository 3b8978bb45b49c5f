"""Fake tensors, nested tensors and other wrappers, and the storage behind a tensor.

Fake tensors carry the values of FX nodes. A nested tensor holds values and offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def is_fake(tensor: torch.Tensor) -> bool:
    """A fake tensor or a fake parameter, and no other subclass."""
    return type(tensor) in (FakeTensor, torch.nn.Parameter) and isinstance(tensor, FakeTensor)


def class_of_user(value: Any) -> type | None:
    """The class of a tensor that is of none of torch's own. Of a parameter its data's counts."""
    if not isinstance(value, torch.Tensor):
        return None
    tensor_class = type(value.data if isinstance(value, torch.nn.Parameter) else value)
    return None if tensor_class.__module__.split(".")[0] == "torch" else tensor_class


def fake_mode_of(tensor: torch.Tensor) -> Any:
    """The FakeTensorMode that a fake tensor belongs to."""
    return tensor.fake_mode  # type: ignore[attr-defined]


def own_fake_mode() -> Any:
    """A fake mode with symbols of its own."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shapes = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    return FakeTensorMode(shape_env=shapes, static_shapes=True)


def device_of(tensor: torch.Tensor) -> torch.device:
    """Where a tensor is. Asked for its `device`, a fake would ask the active modes."""
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


def metadata_of(question: Any, tensor: torch.Tensor) -> Any:
    """What a tensor says of itself. A fake knows its device without being dispatched."""
    return device_of(tensor) if question is torch.ops.prim.device.default else question(tensor)


def constant_of(value: Any) -> Any:
    """The value of a fake tensor of one element that is known to hold a constant, or None."""
    constant = getattr(value, "constant", None)
    known = isinstance(constant, torch.Tensor) and constant.numel() == 1
    return element_of(constant) if known else None


def element_of(tensor: torch.Tensor) -> Any:
    """The element of a real tensor, whatever modes are active."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return tensor.item()


def is_compact_nested(tensor: torch.Tensor) -> bool:
    """A jagged nested tensor [B, j, ...] whose sequences follow each other without gaps."""
    return getattr(tensor, "_ragged_idx", 0) == 1 and getattr(tensor, "_lengths", 0) is None


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a jagged nested tensor; any other as it is."""
    return tensor._values if hasattr(tensor, "_ragged_idx") else tensor


def offsets_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The offsets of a jagged nested tensor; None of any other."""
    return getattr(tensor, "_offsets", None)


def longest_of(nested: torch.Tensor) -> int | torch.SymInt | None:
    """The length that a jagged nested tensor was told its longest sequence has; None if none."""
    longest: int | torch.SymInt | None = getattr(nested, "_maybe_max_seqlen", None)
    return longest


def read_longest(nested: torch.Tensor) -> int:
    """The longest length of a jagged nested tensor, read from its offsets. It is stored there."""
    return int(nested._get_max_seqlen()) if nested.shape[0] else 0  # type: ignore[attr-defined]


_COMPRESSED = {  # layout: the tensors of its indices
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def strided_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that hold elements or say where they are; none of an unknown layout."""
    if tensor.is_nested:
        jagged = tensor.layout == torch.jagged
        return [tensor.values(), tensor.offsets()] if jagged else list(tensor.unbind())  # type: ignore[attr-defined]
    if tensor.layout == torch.sparse_coo:
        return [tensor._values(), tensor._indices()]
    if tensor.layout in _COMPRESSED:
        indices = (getattr(tensor, name)() for name in _COMPRESSED[tensor.layout])
        return [tensor.values(), *indices]
    return [tensor] if tensor.layout == torch.strided else []


def inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that a wrapper subclass holds: of a nested tensor values and offsets."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    attributes = [] if flatten is None else [getattr(tensor, name) for name in flatten()[0]]
    # A distributed tensor holds its mesh too (torch 2.13).
    return [x for x in attributes if isinstance(x, torch.Tensor)]


def is_foreign(value: Any) -> bool:
    """A tensor that wraps others, such as a distributed or a quantised one; not a nested one."""
    wraps = isinstance(value, torch.Tensor) and hasattr(value, "__tensor_flatten__")
    return wraps and not value.is_nested


def wrapped_by(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What a tensor of a foreign class wraps."""
    return inner_tensors(tensor) if is_foreign(tensor) else []


def parts_of(value: Any) -> Any:
    """The tensors that a tensor is made of; anything else as it is."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if not is_traceable_wrapper_subclass(value):
        return value
    return [parts_of(x) for x in inner_tensors(value)]


def holds_subclass(types: Sequence[type]) -> bool:
    """Whether a call is given tensors that are made of others, such as nested ones."""
    known = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
    return any(t not in known for t in types)


def storage_address(storage: torch.UntypedStorage) -> int:
    """What tells two living storages apart."""
    return storage._cdata
