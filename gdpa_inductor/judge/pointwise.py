"""Elements of pointwise operations: the call itself is run, on one element for each lane.

torch tags pointwise operations, so this module needs no list of them. `RULES` has the few that need
more than running the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._compat import operators
from .record import Event, Ref
from .samples import COUNT

if TYPE_CHECKING:
    from .elements import Evaluator

Index = tuple[Tensor, ...]
Rule = Callable[["Evaluator", Event, int, Index], Tensor]

# Point-wise operations without the tag, in some version of torch.
UNTAGGED = frozenset([
    "where", "prelu", "_prelu_kernel", "threshold", "threshold_", "hardtanh", "hardtanh_",
    "softplus", "elu", "elu_", "log_sigmoid_forward", "gelu", "gelu_", "mish", "mish_",
    "leaky_relu", "leaky_relu_", "hardswish", "hardswish_", "hardsigmoid", "hardsigmoid_",
    "softshrink", "hardshrink", "isin", "_conj", "floor_divide", "floor_divide_",
])  # fmt: skip
_DIVISIONS = ("floor_divide", "remainder", "fmod")
_NO_VALUE = ("device", "layout", "pin_memory", "memory_format", "non_blocking", "copy")


def is_pointwise(event: Event) -> bool:
    return torch.Tag.pointwise in getattr(event.op, "tags", ()) or event.name in UNTAGGED


def broadcast(index: Index, sizes: Sequence[int], own: Sequence[int], zero: Tensor) -> Index:
    """An index of a result as that of an operand that is broadcast to it."""
    skipped = len(sizes) - len(own)
    return tuple(zero if size == 1 else index[skipped + d] for d, size in enumerate(own))


def elementwise(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """Run the call itself on one element per lane."""
    place = ev.place(event, number)
    args = [_operand(ev, event, x, place, index) for x in event.args]
    named = {k: x for k, x in event.kwargs.items() if k not in _NO_VALUE}
    kwargs = {k: _operand(ev, event, x, place, index) for k, x in named.items()}
    if kwargs.get("dtype") is not None:
        kwargs["dtype"] = ev.dtype(kwargs["dtype"])
    args = _promoted(ev, event.args, args)
    compares = place.dtype == torch.bool
    if ev.wide and compares:
        args = _meeting(event.args, args)
    _avoid_errors(ev, event, args)
    if compares:
        ev.note_gap(args)
    ev.note_turns(event, args)
    if "out" in kwargs:
        kwargs["out"] = torch.empty_like(kwargs["out"])
    elif operators.writes_first(event.op) and isinstance(args[0], Tensor):
        args[0] = args[0].clone()
    if _wants_numbers(ev, event):
        return _lane_by_lane(ev, event, args, kwargs)
    result = event.op(*args, **kwargs)
    return result[number] if isinstance(result, (tuple, list)) else result


def _wants_numbers(ev: Evaluator, event: Event) -> bool:
    """True if a number that `.item()` read stands where a call takes no tensor."""
    declared = {a.name: str(a.type) for a in operators.schema_of(event.op).arguments}
    return any(
        isinstance(argument, float) and argument in ev.log.numbers and declared[name] != "Tensor"
        for name, argument in event.arguments.items()
    )


def _lane_by_lane(ev: Evaluator, event: Event, args: list[Any], kwargs: dict[str, Any]) -> Tensor:
    """Run a call once for each lane, with its own number."""

    def pick(argument: Any, value: Any, lane: int) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value[lane : lane + 1].clone() if isinstance(argument, Ref) else float(value[lane])

    results, runs = [], ev.true.clone()
    for lane in range(COUNT):
        own = [pick(argument, value, lane) for argument, value in zip(event.args, args)]
        named = {k: pick(event.kwargs[k], value, lane) for k, value in kwargs.items()}
        try:
            results.append(event.op(*own, **named))
        except RuntimeError:  # a number that the dtype does not hold
            runs[lane] = False
            results.append(next(x for x in own if isinstance(x, Tensor)))
    ev.require(runs)
    return torch.cat(results)


def _operand(ev: Evaluator, event: Event, argument: Any, place: Ref, index: Index) -> Any:
    if isinstance(argument, Ref):
        argument = argument.fitted(place.sizes[len(place.sizes) - len(argument.sizes) :])
        argument.require_known()
        at = broadcast(index, place.sizes, argument.sizes, ev.zero)
        return ev.element(argument, event.number, at)
    if isinstance(argument, float) and argument in ev.log.numbers:
        return _as_scalar(ev.number(argument), event, place)
    return argument


def _as_scalar(number: Tensor, event: Event, place: Ref) -> Tensor:
    """A number as a call takes it beside its tensors.

    It is in fp64 if the call computes in fp64, and else in fp32. Past the range of fp32 it is
    infinite. A comparison with tensors in 16 bits takes it in 16 bits.
    """
    beside = (r for r in event.args if isinstance(r, Ref))
    kinds = [place.dtype, *(torch.result_type(_like(r), 1.0) for r in beside)]
    computed = next((dtype for dtype in kinds if dtype.is_floating_point), torch.float64)
    if computed == torch.float64:
        return number
    return number.to(computed if place.dtype == torch.bool else torch.float32).double()


def _like(ref: Ref) -> Tensor:
    """A tensor that promotes as one at this place does."""
    return torch.empty([1] * len(ref.sizes), dtype=ref.dtype)


def _promoted(ev: Evaluator, refs: Sequence[Any], args: list[Any]) -> list[Any]:
    """Tensors without dims do not promote those with dims of the same category: cast them first."""
    tensors = [r for r in refs if isinstance(r, Ref)]
    if all(r.sizes for r in tensors) or not any(r.sizes for r in tensors):
        return args
    samples = [_like(r) for r in tensors if r.dtype != torch.bool]
    if len(samples) < 2:
        return args
    common = torch.result_type(samples[0], samples[1])
    lower = lambda r: isinstance(r, Ref) and not r.sizes and r.dtype != torch.bool
    return [x.to(ev.dtype(common)) if lower(r) else x for r, x in zip(refs, args)]


def _meeting(refs: Sequence[Any], args: list[Any]) -> list[Any]:
    """Two tensors are compared in one dtype. Casting one of them to it may round, and then they are
    equal which were not: it rounds here too.
    """
    tensors = [r for r in refs if isinstance(r, Ref)]
    if len(tensors) != 2 or tensors[0].dtype == tensors[1].dtype:
        return args
    common = torch.result_type(*map(_like, tensors))
    rounds = lambda r: isinstance(r, Ref) and loses(r.dtype, common)
    return [x.to(common).double() if rounds(r) else x for r, x in zip(refs, args)]


def loses(old: torch.dtype, new: torch.dtype) -> bool:
    """True if a cast of reals to a `new` dtype rounds numbers of the old one."""
    if not new.is_floating_point or old == torch.bool:
        return False
    return not old.is_floating_point or torch.finfo(new).eps > torch.finfo(old).eps


def _avoid_errors(ev: Evaluator, event: Event, args: list[Any]) -> None:
    """Lanes in which eager would raise say nothing, nor those where it may fuse or not fuse."""
    base = event.name.rstrip("_")
    if base in ("sin", "cos", "tan") and isinstance(args[0], Tensor):  # as of 10²⁰: any number
        most = 4e7 if event.args[0].dtype == torch.float64 else 8e3
        ev.require(~(args[0].detach().abs() > most))
    if base == "addcmul":  # x + c·y·z is x where x is infinite; NaN, if y·z was rounded to infinity
        factors = [x.detach() for x in args[1:3]]
        product = factors[0] * factors[1] * event.kwargs.get("value", 1)
        ev.require(product.isfinite() | ~factors[0].isfinite() | ~factors[1].isfinite())
    tensors = [x for x in args if isinstance(x, Tensor)]
    if any(x.is_floating_point() for x in tensors) or len(args) < 2:
        return
    divides = base in _DIVISIONS or (base == "div" and event.arguments.get("rounding_mode"))
    if divides and isinstance(args[1], Tensor):
        ev.require_everywhere(args[1] != 0)
        args[1] = torch.where(args[1] == 0, 1, args[1])
    if base == "pow" and isinstance(args[1], Tensor):
        ev.require(args[1] >= 0)
        args[1] = args[1].clamp(min=0)


def _masked(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """masked_fill: by a tensor without dims too, which has an element for each lane here."""
    if not isinstance(event.args[2], Ref):
        return elementwise(ev, event, number, index)
    place = ev.place(event, number)
    source, mask, value = (_operand(ev, event, argument, place, index) for argument in event.args)
    return torch.where(mask, value.to(source.dtype), source)


def foreach(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """One call for each entry of the lists."""
    place = ev.place(event, number)
    entry = number if event.results else list(event.args[0]).index(place)
    args: list[Any] = []
    for argument in event.args:
        if isinstance(argument, (list, tuple)):
            x = _operand(ev, event, argument[entry], place, index)
            args.append([x.clone() if isinstance(x, Tensor) else x])
        else:
            args.append(_operand(ev, event, argument, place, index))
    result = event.op(*args, **event.kwargs)
    return (result or args[0])[0]  # type: ignore[no-any-return]


def _rrelu(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """In evaluation the slope is the mean; in training it is drawn."""
    arguments = event.arguments
    if arguments["training"]:
        raise ev.unknown(event)
    x = ev.element(arguments["self"], event.number, index)
    return torch.nn.functional.leaky_relu(x, (arguments["lower"] + arguments["upper"]) / 2)


RULES: dict[str, Rule] = {
    **dict.fromkeys(["masked_fill", "masked_fill_"], _masked),
    **dict.fromkeys(["rrelu_with_noise", "rrelu_with_noise_"], _rrelu),
}
