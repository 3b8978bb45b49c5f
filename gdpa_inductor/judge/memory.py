"""Remember verdicts on disk: an empty file for each pair of graphs that was found to be equal.

The files are in Inductor's cache folder, and are deleted with it. The name of a file is a hash of
all that the judge looks at: both graphs node by node, the modes, and the versions of torch and of
this package. For each input the hash has hinted sizes, strides, dtype, aliases and requires_grad.
Faults are not remembered.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from .._compat import autograd, dynamo, fx, inductor, operators, shapes, subclasses
from ..sources import source_hash


def place_of(before: GraphModule, after: GraphModule) -> Path | None:
    """The file of a pair of graphs; None where nothing is to be remembered."""
    folder = inductor.cache_folder()
    if folder is None:
        return None
    digest = hashlib.sha256()
    try:
        for line in (_surroundings(), *_described(before), "rewritten", *_described(after)):
            digest.update(line.encode() + b"\n")
    except Exception:  # what cannot be described is judged anew each time
        return None
    return Path(folder) / "gdpa_verdicts" / digest.hexdigest()


def knows(place: Path) -> bool:
    """Whether the rewrite was found to be right. A folder that cannot be read costs time only."""
    return os.path.exists(place)  # unlike pathlib's, which raises for another user's folder


def remember(place: Path) -> None:
    """Note that the rewrite is right. A folder that cannot be written costs time only."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    except OSError:
        pass


def _surroundings() -> str:
    devices = ("cpu", "cuda")
    casts = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), casts)
    return f"{source_hash()} {torch.__version__} {modes} {torch.get_default_dtype()}"


def _described(gm: GraphModule, path: str = "") -> Iterator[str]:
    """A line for each node of a graph and of the bodies that it holds."""
    storages: dict[int, int] = {}
    for node in gm.graph.nodes:
        arguments = torch.fx.map_arg((node.args, node.kwargs), lambda n: f"%{n.name}")
        value = dynamo.real_input(node) if node.op == "placeholder" else None
        value = fx.value_of(node) if value is None else value
        if node.op == "get_attr":
            value = gm
            for part in str(node.target).split("."):
                value = getattr(value, part, None)
            value = value if isinstance(value, Tensor) else None
        tensors = [_tensor(x, storages) for x in fx.tree_leaves(value)]
        yield f"{path}{node.name} {node.op} {_target(node)} {arguments!r} {tensors}"
    for name, child in gm.named_children():
        if isinstance(child, GraphModule):
            yield from _described(child, f"{path}{name}/")


def _target(node: Node) -> str:
    target: Any = node.target
    if isinstance(target, str):
        return target
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", str(target))
    return f"{getattr(target, '__module__', '')}.{name} {operators.overload_name(target)}"


def _tensor(value: Any, storages: dict[int, int]) -> str:
    if not isinstance(value, Tensor):
        return f"{type(value).__name__} {shapes.hint_of(value)}"
    if value.layout != torch.strided:
        return f"{value.layout} {value.dtype} {tuple(value.shape)} {value.requires_grad}"
    sizes = [shapes.hint_of(n) for n in (*value.shape, *value.stride(), value.storage_offset())]
    address = subclasses.storage_address(value.untyped_storage())
    group = storages.setdefault(address, len(storages))
    learns = value.requires_grad, autograd.is_leaf(value)
    return f"{value.dtype} {value.device} {sizes} {group} {learns}"
