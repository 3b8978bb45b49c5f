"""How every row of `vocabulary.POINTWISE` is called: kinds of its tensors, then its arguments.

"x" stands for the next tensor; all else is given as it is. Numbers are those at which functions
bend or end, besides ordinary ones. `contract` runs the cases, and so do the tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

X = "x"
_REAL_ROWS = (
    "neg abs square reciprocal positive sqrt rsqrt exp exp2 expm1 log log1p log2 log10 sin cos "
    "tanh erf special_erf sigmoid relu silu gelu hardsigmoid leaky_relu softplus mish "
    "log_sigmoid_forward sign sgn floor ceil trunc fix round frac isnan isinf isfinite logical_not"
).split()
_INTEGER_ROWS = (
    "neg abs square reciprocal positive sqrt exp sigmoid relu sign sgn floor ceil trunc fix round "
    "isnan isinf isfinite logical_not"
).split()
_TRUTH_ROWS = "bitwise_not logical_not sigmoid sign".split()
_BINARY = "add sub mul div maximum minimum rsub eq ne lt le gt ge".split()
_LOGIC = "logical_and logical_or logical_xor".split()
_BITS = "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__".split()
_DIVISION = "remainder floor_divide".split()


@dataclass(frozen=True)
class TorchCall:
    """at_nan: the slope of torch's vectors at NaN, where its single elements have another one.

    decides: Where a name has several rules, this case tells which one holds.
    """

    name: str
    kinds: str
    args: tuple[Any, ...] = (X,)
    options: dict[str, Any] = field(default_factory=dict)
    at_nan: float | None = None
    decides: bool = False

    @property
    def key(self) -> str:
        """The row: ATen's clamps by tensors have rows of their own."""
        by_tensor = self.name.startswith("clamp") and X in self.args[1:]
        return f"{self.name}.Tensor" if by_tensor else self.name

    def __str__(self) -> str:
        arguments = [*map(str, self.args), *(f"{k}={v}" for k, v in self.options.items())]
        return f"{self.name}-{self.kinds}-{','.join(arguments)}"


def _cases(
    names: list[str], *kinds: str, args: tuple[Any, ...] = (X,), **options: Any
) -> list[TorchCall]:
    return [TorchCall(name, kind, args, options) for name in names for kind in kinds]


def _split(name: str, at_nan: float, *args: tuple[Any, ...]) -> list[TorchCall]:
    """Of one real argument; torch has two slopes at NaN."""
    return [TorchCall(name, "f", (X, *rest), at_nan=at_nan) for rest in args or ((),)]


TWO, THREE = (X, X), (X, X, X)
CASES: list[TorchCall] = [
    *_cases(_REAL_ROWS, "f"),
    *_cases(_INTEGER_ROWS, "i"),
    *_cases(_TRUTH_ROWS, "b"),
    *_cases(_BINARY, "ff", "ii", "if", "fi", args=TWO),
    *_cases([name for name in _BINARY if "sub" not in name], "bi", "ib", "fb", args=TWO),
    *_cases(["add", "mul", "maximum", "minimum", "eq", "ne", "lt", "ge"], "bb", args=TWO),
    *_cases(_LOGIC, "ff", "ii", "bb", "fb", args=TWO),
    *_cases(_BITS, "bb", args=TWO),
    *(TorchCall(name, "i", (X, mask)) for name in ("bitwise_and", "__and__") for mask in (7, 1)),
    *_cases(_DIVISION, "ii", "ib", args=TWO),
    *_cases([*_DIVISION, "fmod"], "i", args=(X, 3)),
    *_cases(_DIVISION, "i", args=(X, -3)),
    *_cases(["div"], "ii", args=TWO, rounding_mode="floor"),
    *_cases(["div"], "i", args=(X, 3), rounding_mode="trunc"),
    *_cases(["add", "sub", "rsub"], "ff", "ii", args=TWO, alpha=-1),
    *(TorchCall(name, "f", (X, 0.5), decides=True) for name in ("clamp_min", "clamp_max")),
    *_cases(["clamp_min", "clamp_max"], "i", args=(X, 2)),
    *(TorchCall(name, "ff", TWO, decides=True) for name in ("clamp_min", "clamp_max")),
    *_cases(["clamp_min", "clamp_max"], "ii", "fi", args=TWO),
    TorchCall("clamp", "fff", THREE, decides=True),
    *_cases(["clamp"], "iii", "fif", args=THREE),
    *_cases(["clamp"], "ff", args=(X, None, X)),
    TorchCall("nan_to_num", "f", (X, 0.0, 3e38, -3e38)),
    TorchCall("nan_to_num", "f", (X, 2.0, 1.0, -1.0)),
    TorchCall("tan", "f"),
    *_cases(["nan_to_num"], "i"),
    *_cases(["lerp"], "fff", args=THREE),
    *_cases(["addcmul"], "fff", args=THREE),
    *_cases(["addcmul"], "fff", args=THREE, value=0.5),
    *_cases(["gelu"], "f", approximate="tanh"),
    *_cases(["where"], "bff", "bii", "bbb", "bif", args=THREE),
    *_cases(["masked_fill"], "fb", "ib", args=(X, X, 3)),
    *_cases(["_prelu_kernel"], "ff", args=TWO),
    *_split("elu", math.nan, (), (0.7, 1.3, 2.0)),
    *_split("celu", math.nan, (), (0.5,), (2.0,)),
    *_split("selu", math.nan),
    *_split("hardswish", math.nan),
    *_split("hardtanh", 0.0, (), (0.0, 3.0), (-0.7, 0.9), (0.3, 0.7)),
    *_split("relu6", 0.0),
    *_split("softshrink", 0.0, (), (0.0,), (0.3,), (0.7,)),
    *_split("hardshrink", 0.0, (), (0.0,), (0.3,), (0.7,)),
    *_cases(["threshold"], "f", args=(X, 0.5, 7.0)),
    *_cases(["softplus"], "f", args=(X, 2.0, 6.0)),
    *(TorchCall("lerp", "ff", (X, X, w)) for w in (0.0, 0.3, -0.3, 0.5, -0.5, 1.0, 2.0)),
    *_cases(["clamp"], "ff", args=(X, X, None)),
    TorchCall("clamp", "f", (X, 0.0, 1.0), decides=True),
    *(TorchCall("clamp", "f", (X, *ends)) for ends in ((1.0, -1.0), (None, 2.0), (0, 2))),
    *(TorchCall("clamp", "f", (X, *ends)) for ends in ((1.0, 1.0), (0.3, None), (-0.7, 0.9))),
    TorchCall("clamp", "f", (X, -math.inf, math.inf)),
    *(TorchCall("clamp", "i", (X, *ends)) for ends in ((0, 2), (2, 0), (None, 3))),
    *(TorchCall("pow", "f", (X, e)) for e in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, -0.5, -1.0, -2.0, 2)),
    *(TorchCall("pow", "f", (base, X)) for base in (0.5, 2.0, 3.0, 10.0, 2)),
    TorchCall("pow", "f", (1.0, X)),
    *(TorchCall("leaky_relu", "f", (X, slope)) for slope in (0.3, -0.3, 0.0)),
    *(
        TorchCall(name, "i", (X, bits))
        for name in ("bitwise_right_shift", "__rshift__", "bitwise_left_shift", "__lshift__")
        for bits in (0, 1, 5, 30)
    ),
    *(TorchCall(name, "f", (X, by)) for name in _BINARY[:4] + _BINARY[7:] for by in (0, 3, -1.5)),
    *(
        TorchCall(name, "i", (X, by))
        for name in ("add", "mul", "div", "eq", "lt", "ge")
        for by in (3, 0.5, True)
    ),
]  # fmt: skip
BY_KEY: dict[str, list[TorchCall]] = {}
for _case in CASES:
    BY_KEY.setdefault(_case.key, []).append(_case)
