"""From terms of a score program to Inductor's ops: what stands between the two products.

`PLAIN` gives every operation of `program.ops` in full accuracy, one line each. `FAST` replaces some
of them for fp16 and bf16 operands on NVIDIA devices, by the hardware's approximate functions; each
obeys |fast - exact| <= 2^-10 max(1, |x|) for x in [-30, 30]. A tanh costs one pass of the
special-function unit per score where ex2 and rcp cost two, and that unit bounds the forward kernel,
so silu and tanh-gelu are written with tanh (see `program.fast`). A sigmoid by itself is not: its
negative tail, where weights of sigmoid attention live, keeps its relative accuracy only as
rcp(1 + ex2(-x)).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..program.expr import Expr, fold, is_ordinary
from ..program.fast import gated
from ..program.integers import wide
from ..program.ops.activations import GELU_ALPHA, GELU_BETA
from . import _compat

Value = Any  # Inductor's OpsValue: a variable of the kernel, with arithmetic operators
Emit = Callable[..., Value]
F32, I32, I64 = torch.float32, torch.int32, torch.int64
LOG2E, LN2 = math.log2(math.e), math.log(2.0)


class _Ops:
    """`ops.name(...)`, looked up at use: the handler exists only while a kernel is written."""

    def __getattr__(self, name: str) -> Emit:
        return functools.partial(_compat.inductor_op, name)


ops = _Ops()


def real(value: float) -> Value:
    return ops.constant(value, F32)


def integer(value: int) -> Value:
    return ops.constant(value, I32 if -(1 << 31) <= value < 1 << 31 else I64)


def choose(condition: Value, x: Value, y: Value) -> Value:
    return ops.where(condition, x, y)


def _through(dtype: torch.dtype) -> Emit:
    """Round to a narrower float and back."""
    return lambda x: ops.to_dtype(ops.to_dtype(x, dtype, use_compute_types=False), F32)


def _sign(x: Value) -> Value:
    one = choose(x > real(0.0), real(1.0), real(0.0))
    return choose(ops.isnan(x), x, choose(x < real(0.0), real(-1.0), one))


def _power(x: Value, exponent: float) -> Value:
    if exponent in (1.0, 2.0, 3.0, 4.0):
        return functools.reduce(lambda y, _: y * x, range(int(exponent) - 1), x)
    return ops.sqrt(x) if exponent == 0.5 else ops.pow(x, real(exponent))


def _softplus(x: Value, beta: float, threshold: float) -> Value:
    scaled = x * real(beta)
    return choose(scaled > real(threshold), x, ops.log1p(ops.exp(scaled)) / real(beta))


def _elu(x: Value, alpha: float, scale: float, slope: float) -> Value:
    below = ops.expm1(x * real(slope)) * real(alpha * scale)
    return choose(x <= real(0.0), below, x * real(scale))


def _clamp(x: Value, low: float, high: float) -> Value:
    return ops.minimum(ops.maximum(x, real(low)), real(high))


def _gelu_tanh_argument(x: Value) -> Value:
    return x * (real(GELU_BETA) + real(GELU_BETA * GELU_ALPHA) * (x * x))


def _remainder(x: Value, y: Value) -> Value:
    """The sign of the divisor, as Python and torch have it; the hardware takes that of the
    dividend."""
    rest = ops.mod(x, y)
    zero = integer(0)
    wrong = ops.logical_and(ops.ne(rest, zero), ops.ne(ops.lt(rest, zero), ops.lt(y, zero)))
    return choose(wrong, rest + y, rest)


PLAIN: Mapping[str, Emit] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "neg": lambda x: ops.neg(x),
    "abs": lambda x: ops.abs(x),
    "pow": _power,
    "maximum": lambda x, y: ops.maximum(x, y),
    "minimum": lambda x, y: ops.minimum(x, y),
    "clamp_min": lambda x, low: ops.maximum(x, real(low)),
    "clamp_max": lambda x, high: ops.minimum(x, real(high)),
    "floordiv": lambda x, y: ops.floordiv(x, y),
    "mod": _remainder,
    "sqrt": lambda x: ops.sqrt(x),
    "rsqrt": lambda x: ops.rsqrt(x),
    "exp": lambda x: ops.exp(x),
    "exp2": lambda x: ops.exp2(x),
    "expm1": lambda x: ops.expm1(x),
    "log": lambda x: ops.log(x),
    "log1p": lambda x: ops.log1p(x),
    "sin": lambda x: ops.sin(x),
    "cos": lambda x: ops.cos(x),
    "tanh": lambda x: ops.tanh(x),
    "erf": lambda x: ops.erf(x),
    "sigmoid": lambda x: ops.sigmoid(x),
    "relu": lambda x: ops.relu(x),
    "silu": lambda x: x * ops.sigmoid(x),
    "gelu": lambda x: x * real(0.5) * (real(1.0) + ops.erf(x * real(math.sqrt(0.5)))),
    "gelu_tanh": lambda x: x * real(0.5) * (real(1.0) + ops.tanh(_gelu_tanh_argument(x))),
    "hardswish": lambda x: x * _clamp(x + real(3.0), 0.0, 6.0) * real(1.0 / 6.0),
    "hardsigmoid": lambda x: _clamp(x + real(3.0), 0.0, 6.0) * real(1.0 / 6.0),
    "leaky_relu": lambda x, slope: choose(x > real(0.0), x, x * real(slope)),
    "elu": _elu,
    "softplus": _softplus,
    "mish": lambda x: x * ops.tanh(_softplus(x, 1.0, 20.0)),
    "hardtanh": _clamp,
    "sign": _sign,
    "floor": lambda x: ops.floor(x),
    "ceil": lambda x: ops.ceil(x),
    "round": lambda x: ops.round(x),
    "trunc": lambda x: ops.trunc(x),
    "bf16": _through(torch.bfloat16),
    "f16": _through(torch.float16),
    "detach": lambda x: x,
    "eq": lambda x, y: ops.eq(x, y),
    "ne": lambda x, y: ops.ne(x, y),
    "lt": lambda x, y: ops.lt(x, y),
    "le": lambda x, y: ops.le(x, y),
    "gt": lambda x, y: ops.gt(x, y),
    "ge": lambda x, y: ops.ge(x, y),
    "and": lambda x, y: ops.logical_and(x, y),
    "or": lambda x, y: ops.logical_or(x, y),
    "xor": lambda x, y: ops.logical_xor(x, y),
    "not": lambda x: ops.logical_not(x),
    "isnan": lambda x: ops.isnan(x),
    "where": choose,
    "float": lambda x: ops.to_dtype(x, F32),
    "int": lambda x: ops.to_dtype(x, I64),
    "bool": lambda x: ops.to_dtype(x, torch.bool),
}


def asm(instruction: str) -> Emit:
    """One PTX instruction on fp32 registers, free of side effects, so that equal ones are
    merged."""

    def emit(*inputs: Value) -> Value:
        places = ", ".join(f"${i}" for i in range(len(inputs) + 1))
        registers = ",".join(["=r", *("r" for _ in inputs)])
        return ops.inline_asm_elementwise(
            *inputs,
            asm=f"{instruction} {places};",
            constraints=registers,
            dtype=F32,
            is_pure=True,
            pack=1,
        )

    return emit


tanh, exp2, log2, reciprocal = (
    asm("tanh.approx.f32"),
    asm("ex2.approx.f32"),
    asm("lg2.approx.f32"),
    asm("rcp.approx.f32"),
)
largest, smallest = asm("max.NaN.f32"), asm("min.NaN.f32")  # exact, and one instruction


def _fast_softplus(x: Value, beta: float, threshold: float) -> Value:
    scaled = x * real(beta)
    grown = log2(real(1.0) + exp2(scaled * real(LOG2E))) * real(LN2 / beta)
    return choose(scaled > real(threshold), x, grown)


def _fast_mish(x: Value) -> Value:
    """tanh(log(1+e)) = e(e+2) / (e(e+2) + 2), e = exp(x); it is 1 in fp32 beyond 20."""
    e = exp2(smallest(x, real(20.0)) * real(LOG2E))
    grown = e * (e + real(2.0))
    return x * (grown * reciprocal(grown + real(2.0)))


def _fast_clamp(x: Value, low: float, high: float) -> Value:
    return smallest(largest(x, real(low)), real(high))


FAST: Mapping[str, Emit] = {
    "maximum": largest,
    "minimum": smallest,
    "clamp_min": lambda x, low: largest(x, real(low)),
    "clamp_max": lambda x, high: smallest(x, real(high)),
    "hardtanh": _fast_clamp,
    "relu": lambda x: largest(x, real(0.0)),
    "tanh": tanh,
    "exp": lambda x: exp2(x * real(LOG2E)),
    "exp2": exp2,
    "sigmoid": lambda x: reciprocal(real(1.0) + exp2(x * real(-LOG2E))),
    "softplus": _fast_softplus,
    "mish": _fast_mish,
    "hardswish": lambda x: x * _fast_clamp(x * real(1.0 / 6.0) + real(0.5), 0.0, 1.0),
    "hardsigmoid": lambda x: _fast_clamp(x * real(1.0 / 6.0) + real(0.5), 0.0, 1.0),
}


def _has_inverse(divisor: Expr) -> bool:
    """A literal whose inverse is an ordinary number too."""
    value = float(divisor.value or 0) if divisor.is_const else 0.0
    return value != 0.0 and is_ordinary(value) and is_ordinary(1.0 / value)


def emitter(fast: bool) -> Callable[[Expr, list[Any]], Value]:
    """The `apply` that `fold` wants."""

    def apply(node: Expr, values: list[Any]) -> Value:
        if fast and node.op == "div" and _has_inverse(node.args[1]):
            return values[0] * real(1.0 / float(node.args[1].value or 1))
        is_fast = fast and node.kind == "f" and node.op in FAST  # integers have no fast forms
        return (FAST if is_fast else PLAIN)[node.op](*values)

    return apply


def subgraph(
    term: Expr, weight: Expr, scalars: Sequence[Any], device: torch.device, fast: bool
) -> Any:
    """The term as a body that a template inlines by `modification`.

    Fixed inputs, by the names of the leaves: s, g (fp32 tiles), b, h, n, m and the bounds of a tile
    (int32), a<i>, a<i>_lo and a<i>_hi (as loaded, floats in fp32). scalars: the symbolic or plain
    integers of the op.
    """
    term = gated(term, weight) if fast else term
    widened = wide([term])

    def leaf(node: Expr) -> Value:
        if node.op == "const":
            value = node.value
            if node.kind == "i":
                return integer(int(value or 0))
            return (
                real(float(value or 0.0))
                if node.kind == "f"
                else ops.constant(bool(value), torch.bool)
            )
        if node.op == "scalar":
            return _compat.symbolic_scalar(scalars[int(node.value or 0)], I64)
        if node.op.startswith("aux"):
            name = f"a{node.value}{node.op.removeprefix('aux')}"
            value = _compat.fixed_input(name, {"f": F32, "i": I64, "b": torch.bool}[node.kind])
            # The operand has a dtype of its own: one of 8 bits would wrap.
            return ops.to_dtype(value, I64) if widened and node.kind == "i" else value
        if node.kind == "f":
            return _compat.fixed_input(node.op, F32)
        index = _compat.fixed_input(node.op, I32)
        return ops.to_dtype(index, I64) if widened else index

    def body(_: Any) -> Value:
        return fold([term], leaf, emitter(fast))[0]

    dtype = {"b": torch.bool, "i": I64, "f": F32}[term.kind]
    return _compat.computed_scalar(body, device, dtype)


def size(value: Any, device: torch.device) -> Any:
    """A length of the launch as a body for `modification`: a plain integer of the kernel."""
    expression = _compat.size_expr(value)
    return _compat.computed_scalar(lambda _: _compat.plain_integer(expression), device, torch.int32)
