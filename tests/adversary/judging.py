"""Runs one program in eager and in a captured form, and compares all that a caller can see.

Outputs, the operands as the call left them, and every leaf's gradient (None and zeros differ).
fp64 is held against eager within a few roundings. In fp32 and bf16 the error rule of
tests/tolerances.py decides, with the same source in fp64 as the truth; where the program names a
precision of its own, and where eager's error is a matter of luck, the noise of eager on operands
one rounding away stands beside it.
"""

import linecache
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tests.jagged import indexed_pad, indexed_unpad
from tests.tolerances import error_of

from .program import FLOATING, Program, arguments_of, make_operands, on_device

Seen = dict[str, object]
# torch's own gradients of hardsigmoid and celu hold constants that are rounded to fp32.
FP64 = {"forward": 1e-9, "backward": 1e-7}


@dataclass
class Entry:
    """A program's callable, and where its parameters and buffers live."""

    function: Callable
    module: torch.nn.Module | None
    namespace: dict


def enter(program: Program, *, precision: torch.dtype | None = None) -> Entry:
    """Compile the source. precision: what every precision that the text names becomes."""
    source = program.source if precision is None else widened(program.source, precision)
    source = source if program.device == "cpu" else on_device(source, program.device)
    filename = f"<adversary {program.seed}{f' in {precision}' if precision else ''}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace: dict = {"_padded": indexed_pad, "_unpadded": indexed_unpad}
    exec(compile(source, filename, "exec"), namespace)
    if program.door == "call":
        return Entry(namespace["f"], None, namespace)
    module = namespace["Model"]()
    return Entry(module, module, namespace)


def widened(source: str, precision: torch.dtype) -> str:
    """The same program with every floating precision replaced by one. FBGEMM has no fp64: its
    padding becomes indexing.
    """
    cast = {torch.float64: ".double()", torch.float32: ".float()"}[precision]
    source = re.sub(r"\.(float|bfloat16|half)\(\)", cast, source)
    source = re.sub(r"torch\.ops\.fbgemm\.jagged_to_padded_dense(\.default)?\(", "_padded(", source)
    source = source.replace("torch.ops.fbgemm.dense_to_jagged(", "_unpadded(")
    return re.sub(r"torch\.(float32|bfloat16|float16)\b", str(precision), source)


def observe(
    program: Program,
    function: Callable,
    operands: dict[str, torch.Tensor],
    module: torch.nn.Module | None,
) -> Seen:
    """Call forward and backward once; everything that the caller can see afterwards."""
    torch.manual_seed(program.seed)
    with placed(program, operands, module), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        returned = function(*arguments_of(program, operands))
        returned = returned if isinstance(returned, tuple) else (returned,)
        seen: Seen = {}
        for i, value in enumerate(returned):
            seen[f"output {i}"] = value.detach().clone() if torch.is_tensor(value) else value
            if torch.is_tensor(value):
                seen[f"output {i} requires grad"] = value.requires_grad
        if program.before_backward:
            exec(program.before_backward, {"torch": torch, **operands})
        requested = [x for x in returned if torch.is_tensor(x) and x.requires_grad]
        if requested:
            torch.autograd.backward(requested, [_weighting(x, i) for i, x in enumerate(requested)])
    for operand in program.operands:
        value = operands[operand.name]
        if not torch.is_tensor(value):
            continue
        seen[f"{operand.name} afterwards"] = value.detach().clone()
        if operand.grad:
            seen[f"gradient of {operand.name}"] = value.grad
    return seen


@contextmanager
def placed(
    program: Program, operands: dict[str, torch.Tensor], module: torch.nn.Module | None
) -> Iterator[None]:
    """The values of parameters and buffers go into the module, and come back changed."""
    inside = [x for x in program.operands if x.place in ("parameter", "buffer")]
    for operand in inside:
        value = operands[operand.name]
        if operand.place == "parameter":
            known = module._parameters.get(operand.name)
            if known is None:
                result = torch.nn.Parameter(value.detach().clone(), requires_grad=operand.grad)
                module.register_parameter(operand.name, result)
            else:
                known.data.copy_(value.detach())
                known.grad = None
        elif module._buffers.get(operand.name) is None:
            module.register_buffer(operand.name, value.detach().clone())
        else:
            module._buffers[operand.name].detach_().copy_(value)
    yield
    for operand in inside:
        operands[operand.name] = getattr(module, operand.name)


def _weighting(value: torch.Tensor, index: int) -> torch.Tensor:
    """The same cotangent in every precision: multiples of 1/8."""
    count = torch.arange(value.numel(), dtype=torch.float64, device=value.device)
    return (((count * 7 + 3 * index) % 17 - 8) / 8).reshape(value.shape).to(value.dtype)


def reference(program: Program, *, number: int = 0) -> Seen:
    """What eager gives on fresh operands."""
    entry = enter(program)
    operands = make_operands(program, FLOATING[program.dtype], number)
    return observe(program, entry.function, operands, entry.module)


def difference(program: Program, mine: Seen, eager: Seen, *, number: int = 0) -> str:
    """The first thing in which `mine` differs from eager by more than rounding, or ""."""
    if mine.keys() != eager.keys():
        return f"{sorted(mine)} where eager has {sorted(eager)}"
    mine = {name: _departed(program, name, x, eager[name]) for name, x in mine.items()}
    doubtful = []
    for name, theirs in eager.items():
        fault = _gross(name, mine[name], theirs)
        if fault == "?":
            doubtful.append(name)
        elif fault:
            return f"{name}: {fault}"
    return _by_error_rule(program, mine, eager, doubtful, number) if doubtful else ""


# Silu and tanh-gelu from a product: autograd's rule is inf - inf where the function's slope is not.
BY_HAND = ("{s} * torch.sigmoid({s})", "{s} * 0.5 * (1 + torch.tanh({s}))")


def _departed(program: Program, name: str, mine: object, eager: object) -> object:
    """`mine`, with eager's values where one of the documented departures lies: NaN of padded keys,
    NaN · 0, do not spread (docs/jagged.md); gradients of a function written by hand are that
    function's, and lerp's are NaN where they are infinite (docs/numerics.md).
    """
    if not (torch.is_tensor(mine) and torch.is_tensor(eager)) or mine.shape != eager.shape:
        return mine
    if not mine.is_floating_point():
        return mine
    gradient = name.startswith("gradient")
    by_hand = any(f"activation {text}" in program.spelling for text in BY_HAND)
    if program.family == "jagged" or (by_hand and gradient):
        mine = torch.where(eager.isnan() & ~mine.isnan(), eager, mine)
    if gradient and "lerp(" in program.source:
        mine = torch.where(mine.isnan() & eager.isinf(), eager, mine)
    return mine


def _gross(name: str, mine: object, eager: object) -> str:
    """ "" where equal within a few roundings, "?" where the error rule must decide."""
    if not (torch.is_tensor(mine) and torch.is_tensor(eager)):
        same = type(mine) is type(eager) and (mine == eager or (mine != mine and eager != eager))
        return "" if same else f"{_said(mine)}, eager has {_said(eager)}"
    if mine.shape != eager.shape or mine.dtype != eager.dtype:
        return f"{_said(mine)}, eager has {_said(eager)}"
    if not mine.is_floating_point():
        return "" if torch.equal(mine, eager) else "not equal"
    if not eager.numel():
        return ""
    tight = 1e-11 if eager.dtype == torch.float64 else 2 * torch.finfo(eager.dtype).eps
    return "" if bool((apart(mine, eager) <= tight * largest(eager)).all()) else "?"


def apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """How far elements are apart: 0 where they are the same or both NaN, NaN where one is."""
    distance = (one.double() - other.double()).abs()
    distance[(one == other) | (one.isnan() & other.isnan())] = 0
    return distance


def largest(x: torch.Tensor) -> float:
    """The largest size among the finite elements, or 0."""
    finite = x[x.isfinite()].double().abs()
    return finite.max().item() if finite.numel() else 0.0


def _said(value: object) -> str:
    if torch.is_tensor(value):
        return f"{value.dtype} {list(value.shape)}"
    return repr(value)


def _by_error_rule(program: Program, mine: Seen, eager: Seen, names: list[str], number: int) -> str:
    again = reference(program, number=number)
    truths = _truths(program, eager, number)
    noise: dict[str, float] | None = None
    for name in names:
        mine[name] = _at_the_edge(mine[name], eager[name])
        direction = "backward" if name.startswith("gradient") else "forward"
        truth = truths[direction]
        if _gross(name, again[name], eager[name]):
            continue  # eager itself is not reproducible here
        arguments = (mine[name], eager[name], truth[name])
        relative = FP64[direction]
        if truth is not eager and _specials_of_the_truth(*arguments):
            continue
        if not error_of(*arguments, direction=direction, relative=relative):
            continue
        if noise is None:
            noise = noise_of(program, eager, number=number)
        allowed = max(noise[name], _roundings_of_uses(program, name) * largest(eager[name]))
        fault = error_of(*arguments, direction=direction, noise=allowed, relative=relative)
        if fault and allowed < (more := error_of_eager(program, name, number=number)):
            fault = error_of(*arguments, direction=direction, noise=more, relative=relative)
        if fault and not allowed == float("inf"):
            # Without a wider truth eager's own error is not known, and its noise stands for it.
            step = 2 * torch.finfo(eager[name].dtype).eps * largest(eager[name])
            near = apart(mine[name], eager[name]) <= max(4 * allowed, step)
            if truth is eager and bool(near.all()):
                continue
            halved = program.dtype == "bfloat16"
            if halved and _as_in_fp32(program, eager, *arguments[:2], name, number):
                continue
            return f"{name}: {fault}"
    return ""


def _roundings_of_uses(program: Program, name: str) -> float:
    """A gradient of weights that are cast, and used by two products, is rounded for each use where
    both are fused. Eager rounds the sum of both. Relative to the largest element.
    """
    if not (name.startswith("gradient") and "scores used twice" in program.hostilities):
        return 0.0
    casts = (kind for text, kind in FLOATING.items() if f".to(torch.{text})" in program.source)
    return max((torch.finfo(kind).eps for kind in casts), default=0.0)


def _as_in_fp32(
    program: Program, seen: Seen, mine: torch.Tensor, eager: torch.Tensor, name: str, number: int
) -> bool:
    """Whether infinities are where fp32 has them. A tanh of 0.999 is 1 in 16 bits, and its slope 0
    beside an infinity.
    """
    in_fp32 = exact_of(program, seen, number=number, precision=torch.float32)
    return _specials_of_the_truth(mine, eager, in_fp32[name])


# Gradients through such constants are subnormal on their way, where eager has few digits.
SUBNORMAL = "constants that overflow when folded"


def _truths(program: Program, eager: Seen, number: int) -> dict[str, Seen]:
    """What results and gradients are held against: fp64, or eager where fp64 is no truth."""
    few = SUBNORMAL in program.hostilities
    # 16 bits round the constants themselves, where a kernel computes in fp32.
    digits = few and program.dtype == "bfloat16"
    literal = {
        "forward": program.literal and not digits,
        "backward": program.literal and not few,
    }
    exact = eager if all(literal.values()) else exact_of(program, eager, number=number)
    return {direction: eager if as_is else exact for direction, as_is in literal.items()}


def _at_the_edge(mine: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """`mine`, infinite where one is and the other nearly so: the order of factors decides that."""
    large = torch.finfo(eager.dtype).max / 16
    alike = (mine.abs() > large) & (eager.abs() > large) & (mine.sign() == eager.sign())
    return torch.where(alike & (mine.isinf() | eager.isinf()), eager, mine)


def _specials_of_the_truth(mine: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor) -> bool:
    """Infinities differ from eager's and are where fp64 has them: a weight that bf16 rounds to zero
    beside an infinite value, and the like.
    """
    kinds = [torch.where(x.isfinite(), 0.0, x.double()) for x in (mine, eager, truth)]
    ours, theirs, exact = (x.nan_to_num(nan=7.0) for x in kinds)
    return not torch.equal(ours, theirs) and torch.equal(ours, exact)


def exact_of(
    program: Program, eager: Seen, *, number: int = 0, precision: torch.dtype = torch.float64
) -> Seen:
    """The program in fp64; eager's own results where the text has no such form."""
    if program.dtype == "float64":
        return eager
    try:
        entry = enter(program, precision=precision)
        operands = make_operands(program, precision, number)
        seen = observe(program, entry.function, operands, entry.module)
    except Exception:
        return eager
    fits = seen.keys() == eager.keys() and all(_comparable(seen[k], eager[k]) for k in eager)
    return seen if fits else eager


def _comparable(one: object, other: object) -> bool:
    if torch.is_tensor(one) and torch.is_tensor(other):
        return one.shape == other.shape
    return torch.is_tensor(one) == torch.is_tensor(other)


def noise_of(program: Program, eager: Seen, *, number: int = 0) -> dict[str, float]:
    """How far eager moves when every operand moves by one rounding; inf where NaN and infinities
    move too.
    """
    worst = dict.fromkeys(eager, 0.0)
    for draw in range(12):
        entry = enter(program)
        operands = _moved(program, number, draw)
        try:
            moved = observe(program, entry.function, operands, entry.module)
        except Exception:
            continue
        for name, value in eager.items():
            if torch.is_tensor(value) and value.is_floating_point() and value.numel():
                worst[name] = max(worst[name], furthest(moved[name], value))
    return worst


def error_of_eager(program: Program, name: str, *, number: int = 0) -> float:
    """Eager's own error in a result of a plain program, without the luck of one draw: the largest
    one over a few operands a rounding away.
    """
    if program.hostilities or program.dtype == "float64":
        return 0.0
    worst = 0.0
    for draw in range(4):
        narrow, exact = enter(program), enter(program, precision=torch.float64)
        wide = {
            x: value.detach().double().requires_grad_(value.requires_grad)
            if torch.is_tensor(value) and value.is_floating_point()
            else value
            for x, value in _moved(program, number, draw).items()
        }
        truth = observe(program, exact.function, wide, exact.module)[name]
        operands = _moved(program, number, draw)
        seen = observe(program, narrow.function, operands, narrow.module)[name]
        worst = max(worst, furthest(seen, truth))
    return worst


def _moved(program: Program, number: int, draw: int) -> dict[str, torch.Tensor | int]:
    """Fresh operands, moved by one rounding: of bf16 where the program runs under autocast."""
    dtype = FLOATING[program.dtype]
    eps = torch.finfo(torch.bfloat16 if "autocast" in program.source else dtype).eps
    operands = make_operands(program, dtype, number)
    generator = torch.Generator().manual_seed(draw)
    for operand in program.operands:
        value = operands[operand.name]
        # A mask of zeros and ones is meant exactly; so are numbers that the program lists.
        exact = operand.values == "zero_one" or isinstance(operand.values, tuple)
        if torch.is_tensor(value) and value.is_floating_point() and not (operand.base or exact):
            sign = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
            value.data.mul_((1 + eps * sign.to(value.device)).to(value.dtype))
    return operands


def furthest(one: object, other: torch.Tensor) -> float:
    """The largest distance of two elements; infinite where NaN is in one alone."""
    if not torch.is_tensor(one):
        return float("inf")
    return apart(one, other).nan_to_num(nan=float("inf")).max().item()
