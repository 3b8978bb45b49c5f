"""Log every ATen operation that a graph runs. Operands and results are places in storages.

`Recorder` is a dispatch mode. It sees operations below autograd and above the fake kernels. So
composite functions are decomposed, and all kinds of writes look the same: in-place methods, `out=`,
foreach, `set_`, views, `.data` and `detach()`. Aliases need no rules: a result in a known storage
is an alias.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .._compat import autograd, fx, operators, shapes, subclasses
from .verdict import Incomplete

SIZE_OF_ELEMENTS = "the size of a tensor depends on the elements of another"


def tensors_of(values: Any) -> list[Tensor]:
    """The tensors among nested values."""
    return [x for x in fx.tree_leaves(values) if isinstance(x, Tensor)]


@dataclass(frozen=True)
class Ref:
    """A tensor as a place: a storage of the log, and the geometry of the view, in elements.

    grad: Whether the tensor required grad when it was logged. A detached alias does not.
    """

    storage: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    grad: bool = field(default=False, compare=False)

    @cached_property
    def geometry(self) -> tuple[Any, ...]:
        """Sizes and strides; the stride of a dimension of size 1 means nothing."""
        strides = tuple(0 if n == 1 else s for n, s in zip(self.sizes, self.strides))
        return self.sizes, strides, self.offset, self.dtype

    @cached_property
    def is_symbolic(self) -> bool:
        """Whether a size is known only when the model runs, as that of `x[mask]` is."""
        numbers = (*self.sizes, *self.strides, self.offset)
        return any(isinstance(n, torch.SymInt) for n in numbers)

    def fitted(self, sizes: Sequence[Any]) -> Ref:
        """The same place, with the sizes that torch has noted to be these: the graph raises an
        error where they are not.
        """
        if not self.is_symbolic:
            return self
        pairs = zip(self.sizes, sizes, strict=True)
        known = tuple(m if shapes.statically_known_true(n == m) else n for n, m in pairs)
        return replace(self, sizes=known)

    def require_known(self) -> None:
        """Raises Incomplete where a size is known only when the model runs."""
        if self.is_symbolic:
            raise Incomplete(SIZE_OF_ELEMENTS)


@dataclass(eq=False)
class Event:
    """One operation.

    args, kwargs:  The arguments, with a `Ref` for each tensor.
    results:       `Ref`s and other values.
    side:          The graph that has it: "both", "before" or "after".
    again:         The graph that has it, if a claim has decided it: others may share it.
    grad:          Gradient mode was on.
    implied:       Autocast may have added it.
    writes:        The places that it changes, including new storages. Each has the number of the
                   result with the new contents, or None.
    constant:      The value of a new one-element tensor, if it is known.
    """

    number: int
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    side: str
    grad: bool
    implied: bool = False
    again: str = ""
    results: tuple[Any, ...] = ()
    writes: list[tuple[Ref, int | None]] = field(default_factory=list)
    constant: Any = None

    @cached_property
    def name(self) -> str:
        """The name of the operation without namespace and overload: "masked_fill_"."""
        return operators.op_name(self.op)

    @property
    def space(self) -> str:
        """The namespace of the operation: "aten"."""
        return str(getattr(self.op, "namespace", ""))

    @property
    def is_known(self) -> bool:
        """Whether the name says what the operation does: elsewhere a namesake is another one."""
        return self.space in _KNOWN_SPACES

    @property
    def draws(self) -> bool:
        """Whether it draws from a generator. What is no operator has no arguments to ask."""
        return operators.is_random(self.op) and operators.draws(self.op, self.arguments)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, defaults included."""
        declared = operators.schema_of(self.op).arguments
        defaults = {a.name: a.default_value for a in declared if a.has_default_value()}
        return {**defaults, **dict(zip((a.name for a in declared), self.args)), **self.kwargs}


_KNOWN_SPACES = ("aten", "prims", "fbgemm", "gdpa")
_LIFTS = ("lift_fresh", "lift_fresh_copy")
_SUMS = ("bmm", "mm", "addmm", "baddbmm", "attention", "attention_sums")
Write = tuple[Event, Ref, "int | None"]


@dataclass
class Log:
    """The events of one interpretation.

    Storages are kept alive, so that no two of them ever have the same address.

    side:             Which graph runs.
    grad:             Gradient mode is on for the node. An operator may turn it off inside.
    implied:          Casts are autocast's, not the node's.
    autocasts:        Those that are on.
    writes:           For each storage: the events that changed it, in order.
    owner:            For each storage: the graph that made it.
    constants:        For a storage: the one element that it holds, if known.
    literal_tensors:  For a storage: its content, if the graph itself states it, as in
                      `torch.tensor([3, 5])`.
    products:         Matrix products and fused calls that only one graph has.
    literals:         Integers that only one graph names, since the last claim.
    numbers:          The place that an `.item()` has read, by the number that it returned.
    nested:           Some tensors consist of others, which may or may not need gradients.
    lost, seeds:      Calls that draw random numbers, and that one graph alone has (`draws`).
    decided:          Those of `lost` for which a claim has found the fused call.
    hooked:           Where in autograd's graph the tensors are that hooks watch.
    """

    side: str = "both"
    grad: bool = True
    implied: bool = False
    autocasts: list[tuple[str, torch.dtype]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    products: list[Event] = field(default_factory=list)
    writes: dict[int, list[Write]] = field(default_factory=dict)
    owner: dict[int, str] = field(default_factory=dict)
    constants: dict[int, Any] = field(default_factory=dict)
    literal_tensors: dict[int, Tensor] = field(default_factory=dict)
    literals: dict[int, None] = field(default_factory=dict)
    numbers: dict[float, tuple[Ref, int]] = field(default_factory=dict)
    lost: list[Event] = field(default_factory=list)
    seeds: list[Event] = field(default_factory=list)
    decided: set[Event] = field(default_factory=set)
    nested: bool = False
    hooked: dict[Any, None] = field(default_factory=dict)
    _known: dict[int, int] = field(default_factory=dict)
    _alive: list[Any] = field(default_factory=list)

    def ref(self, tensor: Tensor) -> Ref:
        """The place of a tensor; a storage that was not seen before is added."""
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise Incomplete(f"a tensor of layout {tensor.layout}")
        storage = tensor.untyped_storage()
        address = subclasses.storage_address(storage)
        known = self._known.get(address)
        if known is None:
            known = self._known[address] = len(self._alive)
            self._alive.append(storage)
            self.writes[known], self.owner[known] = [], self.side
            if type(tensor) is Tensor and tensor.numel() == 1:  # a literal of the graph, no fake
                self.constants[known] = subclasses.element_of(tensor)
        sizes, strides = tuple(tensor.shape), tensor.stride()
        start: Any = tensor.storage_offset()
        device = subclasses.device_of(tensor)
        return Ref(known, sizes, strides, start, tensor.dtype, device, tensor.requires_grad)

    def share(self, tensor: Tensor) -> None:
        """From now on the storage of a tensor is one of both graphs."""
        self.owner[self.ref(tensor).storage] = "both"

    def referred(self, values: Any) -> Any:
        """Nested values with tensors as `Ref`. Whole numbers of one graph alone are noted."""
        if isinstance(values, Tensor):
            return self.ref(values)
        if isinstance(values, list):
            return [self.referred(x) for x in values]
        if isinstance(values, tuple):
            return tuple([self.referred(x) for x in values])
        if isinstance(values, dict):
            return {name: self.referred(x) for name, x in values.items()}
        whole = type(values) is int or (type(values) is float and values.is_integer())
        if whole and self.side != "both" and abs(values) < 1 << 20:
            self.literals[int(values)] = None
        return values

    def event(self, op: Any, args: Any, kwargs: dict[str, Any] | None = None) -> Event:
        """A new event, operands as they are now; `add` ends it."""
        positional, named = self.referred(args), self.referred(kwargs or {})
        return Event(self.now, op, positional, named, self.side, self.grad, self.implied)

    def add(self, event: Event) -> None:
        self.events.append(event)
        if event.side != "both" and event.name in _SUMS:
            self.products.append(event)
        for place, number in event.writes:
            self.writes[place.storage].append((event, place, number))

    @property
    def now(self) -> int:
        """The number of the next event: a time."""
        return len(self.events)

    def opaque(self, op: Any, operands: Any, results: Any) -> None:
        """Log a call without a schema: it is taken to write all that it is given.

        A hook changes gradients and no element. Both graphs have it on the same tensor.
        """
        event = self.event(op, (operands,))
        places = [x for x in fx.tree_leaves(event.args) if isinstance(x, Ref)]
        if event.name in _HOOKS:
            places = []
            self.hooked |= dict.fromkeys(map(autograd.gradient_edge, tensors_of(operands)))
        outputs = list(map(self.ref, tensors_of(results)))
        event.results = tuple(outputs)
        event.writes = [(place, None) for place in (*places, *outputs)]
        self.add(event)


class Recorder(operators.TorchDispatchMode):
    """Logs what runs under it. To be entered above a FakeTensorMode."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # a question about a tensor
            return subclasses.metadata_of(func, args[0])
        if torch.is_inference_mode_enabled() and operators.is_composite(func):
            result = self._decomposed(func, args, kwargs)
            if result is not NotImplemented:
                return result
        # A nested tensor: what it does to its values is logged.
        if subclasses.holds_subclass(types):
            self.log.nested = True
            return NotImplemented
        if func is torch.ops.aten._local_scalar_dense.default:
            return self._number(func, args[0])
        log = self.log
        event = log.event(func, args, kwargs)
        targets = _written(event)
        if event.name in _LIFTS and type(args[0]) is Tensor:
            log.literal_tensors[event.args[0].storage] = args[0]
        first = len(log.writes)  # of the storages that the call makes
        result = func(*args, **kwargs)
        flat, _ = fx.tree_flatten(result)
        event.results = tuple(log.ref(x) if isinstance(x, Tensor) else x for x in flat)
        event.writes = _writes(targets, event.results, first)
        event.constant = subclasses.constant_of(flat[0]) if len(flat) == 1 else None
        log.add(event)
        return result

    def _decomposed(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A composite as its parts. Modes see it whole in inference mode, with autocast off."""
        log = self.log
        ambient = log.autocasts
        # The others have cast its arguments.
        log.autocasts = [x for x in ambient if not operators.has_autocast(func, x[0])]
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(self)
                for cast in log.autocasts:
                    stack.enter_context(torch.autocast(*cast))
                return func.decompose(*args, **kwargs)
        finally:
            log.autocasts = ambient

    def _number(self, func: Any, tensor: Tensor) -> Any:
        """`.item()`: a number that no program would write, so that it is known again."""
        log = self.log
        event = log.event(func, (tensor,))
        count = sum(known.op is func for known in log.events)
        if tensor.dtype == torch.bool or tensor.dtype.is_complex:
            raise Incomplete(f"a number of dtype {tensor.dtype} is read on the host")
        number: float = 5 + count
        if tensor.is_floating_point():
            number = 0.7312890625 + 0.001953125 * count
            log.numbers[number] = (event.args[0], log.now)
        event.results = (number,)
        log.add(event)
        return number


def _written(event: Event) -> list[Ref]:
    """The operands that a call changes: by its schema, or by a list of those that keep silent."""
    silent = SILENT_WRITERS.get(event.name, ())
    places: list[Ref] = []
    for argument in operators.schema_of(event.op).arguments:
        declared = argument.alias_info is not None and argument.alias_info.is_write
        idle = argument.name == "noise" and operators.is_idle(event.op, event.arguments)
        if (declared or argument.name in silent) and not idle:
            leaves = fx.tree_leaves(event.arguments.get(argument.name))
            places += [x for x in leaves if isinstance(x, Ref)]
    return places


_HOOKS = ("register_hook",)  # from torch 2.15 on a call in Dynamo's graph
# Operations that change an operand which their schema declares to be read only.
SILENT_WRITERS: dict[str, tuple[str, ...]] = dict.fromkeys(
    ["native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_impl_index",
     "_batch_norm_with_update", "batch_norm_update_stats", "batch_norm_gather_stats",
     "batch_norm_gather_stats_with_counts"],
    ("running_mean", "running_var"),
)  # fmt: skip


def _writes(
    targets: Sequence[Ref], results: Sequence[Any], first: int
) -> list[tuple[Ref, int | None]]:
    """The places that a call changes, each with the result that is there: the operands that it
    writes, and storages of its own, from the number `first` on.
    """
    writes: list[tuple[Ref, int | None]] = []
    for place in targets:
        same = [i for i, x in enumerate(results) if isinstance(x, Ref) and x == place]
        writes.append((place, same[0] if same else None))
    for number, result in enumerate(results):
        new = isinstance(result, Ref) and result.storage >= first
        if new and all(result.storage != place.storage for place, _ in writes):
            writes.append((result, number))
    return writes
