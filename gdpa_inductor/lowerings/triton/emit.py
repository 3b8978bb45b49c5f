"""Write the terms of a score program in Inductor's ops.

`PLAIN` has one line for each operation that Inductor knows. Other operations are first rewritten
into these (`program/emission.py`).

Approximate forms are used for fp16 and bf16 operands on NVIDIA devices. The special-function unit
bounds the forward kernel. A tanh needs one pass of it for a score, but ex2 and rcp need two. So
silu and tanh-gelu are written with tanh (see `program.fast`). A plain sigmoid is not: sigmoid
attention has its weights in the negative tail, which is accurate only as rcp(1 + ex2(-x)).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..._compat import lowering, shapes
from ...kernels.devices import nvidia
from ...program.emission import emitted
from ...program.expr import POSITIONS, Expr, fold
from ...program.fast import gated
from ...program.integers import wide

Value = Any  # Inductor's OpsValue: a variable of the kernel, with arithmetic operators
Emit = Callable[..., Value]
F32, I32, I64 = torch.float32, torch.int32, torch.int64


class _Ops:
    # It looks for Inductor's handler when it is called, as there is one only in lowering.
    def __getattr__(self, name: str) -> Emit:
        return lambda *args, **kwargs: lowering.inductor_op(name, *args, **kwargs)


ops = _Ops()


def real(value: float) -> Value:
    return ops.constant(value, F32)


def integer(value: int) -> Value:
    return ops.constant(value, I32 if -(1 << 31) <= value < 1 << 31 else I64)


def choose(condition: Value, x: Value, y: Value) -> Value:
    return ops.where(condition, x, y)


def _through(dtype: torch.dtype) -> Emit:
    return lambda x: ops.to_dtype(ops.to_dtype(x, dtype, use_compute_types=False), F32)


def _remainder(x: Value, y: Value) -> Value:
    # As in Python and torch it has the sign of the divisor; the hardware's has the dividend's.
    rest = ops.mod(x, y)
    zero = integer(0)
    wrong = ops.logical_and(ops.ne(rest, zero), ops.ne(ops.lt(rest, zero), ops.lt(y, zero)))
    return choose(wrong, rest + y, rest)


def asm(instruction: str, dtype: torch.dtype = F32, last: str = "") -> Emit:
    """One PTX instruction on 32-bit registers. It is pure, so that equal ones are merged.

    last: An operand that is a constant.
    """

    def emit(*inputs: Value) -> Value:
        places = ", ".join([*(f"${i}" for i in range(len(inputs) + 1)), *([last] if last else [])])
        registers = ",".join(["=r", *("r" for _ in inputs)])
        return ops.inline_asm_elementwise(
            *inputs,
            asm=f"{instruction} {places};",
            constraints=registers,
            dtype=dtype,
            is_pure=True,
            pack=1,
        )

    return emit


# Operations that have the same name in Inductor.
_ALIKE = (
    "neg", "abs", "maximum", "minimum", "floordiv", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log",
    "log1p", "sin", "cos", "tanh", "erf", "sigmoid", "relu", "floor", "ceil", "round", "trunc",
    "eq", "ne", "lt", "le", "gt", "ge", "isnan",
)  # fmt: skip
PLAIN: Mapping[str, Emit] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "power": lambda x, exponent: ops.pow(x, real(exponent)),
    "mod": _remainder,
    "bf16": _through(torch.bfloat16),
    "f16": _through(torch.float16),
    "and": ops.logical_and,
    "or": ops.logical_or,
    "xor": ops.logical_xor,
    "not": ops.logical_not,
    "where": choose,
    "float": lambda x: ops.to_dtype(x, F32),
    "int": lambda x: ops.to_dtype(x, I64),
    "bool": lambda x: ops.to_dtype(x, torch.bool),
    **{name: getattr(ops, name) for name in _ALIKE},
    "tanh_approx": asm("tanh.approx.f32"),
    "exp2_approx": asm("ex2.approx.f32"),
    "log2_approx": asm("lg2.approx.f32"),
    "rcp_approx": asm("rcp.approx.f32"),
}


# For fp32: exact, and one instruction each. Triton's own forms take several. A number that is
# rounded to bf16 and back takes one of the special-function unit (ptxas of CUDA 12.9 and 13.4), but
# not as the upper half of two, which is its form in fp32 too.
FAST: Mapping[str, Emit] = {
    "maximum": asm("max.NaN.f32"),
    "minimum": asm("min.NaN.f32"),
    "bf16": asm("cvt.rn.bf16x2.f32", last="0f00000000"),
}


# A move that LLVM cannot look into. Rows and columns of a tile are bits of the thread's number, and
# LLVM's vectoriser pairs the arithmetic on them. With Triton 3.6 one half of a pair then spoils the
# other: |q_idx - kv_idx| <= 3 was decided wrongly in three of four warps.
hidden = asm("mov.b32", I32)


def emitter(fast: bool) -> Callable[[Expr, list[Any]], Value]:
    """The function `apply` for `fold`."""

    def apply(node: Expr, values: list[Any]) -> Value:
        own = FAST if fast and node.kind == "f" and node.op in FAST else PLAIN
        return own[node.op](*values)

    return apply


def subgraph(
    term: Expr, weight: Expr, scalars: Sequence[Any], device: torch.device, fast: bool
) -> Any:
    """The term as a subgraph that a template inlines by `modification`.

    The template passes the leaves by name: s and g (fp32 tiles), b, h, q_idx, kv_idx and the bounds
    of a tile (int32). a<i>, a<i>_lo and a<i>_hi are loaded elements; floats are fp32. scalars: The
    integers of the op, plain or symbolic.
    """
    (term,) = emitted([gated(term, weight) if fast else term], PLAIN, fast)
    widened = wide([term])
    hides = nvidia(device)

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
            return lowering.symbolic_scalar(scalars[node.value], I64)
        if node.op.startswith("aux"):
            name = f"a{node.value}{node.op.removeprefix('aux')}"
            value = lowering.fixed_input(name, {"f": F32, "i": I64, "b": torch.bool}[node.kind])
            # An operand keeps its own integer dtype, and one of 8 bits would wrap.
            return ops.to_dtype(value, I64) if widened and node.kind == "i" else value
        if node.kind == "f":
            return lowering.fixed_input(node.op, F32)
        index = lowering.fixed_input(node.op, I32)
        if hides and node.op in POSITIONS:
            index = hidden(ops.to_dtype(index, I32))  # it has 64 bits if an operand is large
        return ops.to_dtype(index, I64) if widened else index

    def body(_: Any) -> Value:
        return fold([term], leaf, emitter(fast))[0]

    dtype = {"b": torch.bool, "i": I64, "f": F32}[term.kind]
    return lowering.computed_scalar(body, device, dtype)


def size(value: Any, device: torch.device) -> Any:
    """A size of the launch as a subgraph for `modification`: a plain integer of the kernel."""
    expression = shapes.size_expr(value)
    return lowering.computed_scalar(
        lambda _: lowering.plain_integer(expression), device, torch.int32
    )
