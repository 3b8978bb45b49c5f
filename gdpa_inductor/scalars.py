"""Run a `score_mod` or `mask_mod`, which is written for one score, for all scores.

Its arguments behave as 0-dim tensors, as in flex_attention. `torch.vmap` makes them so, whatever
the function calls. Most functions compute with elements and look elements up. Given tensors that
broadcast, they have the same results, in a form that the matcher reads. So that is tried first, and
left at the first call that might see more than one element (`_Mapped`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_ELEMENTWISE = """
    abs absolute acos acosh add addcdiv addcmul and angle arccos arccosh arcsin arcsinh arctan
    arctan2 arctanh asin asinh atan atan2 atanh bfloat16 bitwise_and bitwise_left_shift bitwise_not
    bitwise_or bitwise_right_shift bitwise_xor bool ceil celu clamp clamp_max clamp_min clip
    copysign cos cosh deg2rad digamma div divide double elu eq erf erfc erfinv exp exp2 expm1 fix
    float float_power floor floor_divide floordiv fmax fmin fmod frac gcd ge gelu greater
    greater_equal gt half hardshrink hardsigmoid hardswish hardtanh heaviside hypot i0 iadd iand
    ifloordiv igamma igammac imul int invert ior ipow isfinite isinf isnan isneginf isposinf isreal
    isub itruediv ixor lcm ldexp le leaky_relu lerp less less_equal lgamma log log10 log1p log2
    logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit logsigmoid long lshift
    lt masked_fill maximum minimum mish mod mul multiply nan_to_num ne neg negative nextafter
    not_equal or pos positive pow rad2deg radd rand rdiv reciprocal relu relu6 remainder rfloordiv
    rlshift rmod rmul ror round rpow rrshift rshift rsqrt rsub rtruediv rxor selu sgn sigmoid sign
    signbit silu sin sinc sinh softplus softshrink softsign special_airy_ai special_bessel_j0
    special_bessel_j1 special_bessel_y0 special_bessel_y1 special_digamma special_entr special_erf
    special_erfc special_erfcx special_erfinv special_exp2 special_expit special_expm1
    special_gammainc special_gammaincc special_gammaln special_i0 special_i0e special_i1 special_i1e
    special_log1p special_log_ndtr special_logit special_modified_bessel_i0
    special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_ndtr
    special_ndtri special_psi special_round special_scaled_modified_bessel_k0
    special_scaled_modified_bessel_k1 special_sinc special_spherical_bessel_j0 special_xlog1py
    special_xlogy special_zeta sqrt square sub subtract tan tanh tanhshrink threshold to true_divide
    truediv trunc type type_as where xlogy xor
"""
_RANDOM = """
    alpha_dropout bernoulli binomial cauchy dropout exponential feature_dropout geometric
    log_normal multinomial normal poisson rand randint randn random randperm uniform
"""
_CASTS = "to type type_as pos positive __pos__ bool int long half float double bfloat16"
# Sets are frozen: in compiled calls Dynamo compares each with itself, and a set by its elements.
# As functions, methods, operators and methods in place are named. Those that make a number for
# Python want one element.
_NUMBERS = {"__bool__", "__float__", "__int__", "__long__"}
ELEMENTWISE = frozenset(
    {x for name in _ELEMENTWISE.split() for x in (name, f"__{name}__", f"{name}_")} - _NUMBERS
)
# They differ from score to score, also where only a shape is given.
RANDOM = frozenset(x for name in _RANDOM.split() for x in (name, f"{name}_", f"{name}_like"))
# They may return the tensor that they are given.
_ALIASES = frozenset(_CASTS.split())
# Of a tensor's attributes, those that do not depend on its shape.
_PLAIN = (Tensor.dtype.__get__, Tensor.device.__get__)  # type: ignore[attr-defined]


def at_all_scores(
    mod: Callable[..., Any], operands: Sequence[Tensor], axes: Sequence[Sequence[int]]
) -> Any:
    """`mod(*operands)` as if each operand were 0-dim, and its own: it may be written into.

    Args:
        operands: of equally many dims, which broadcast.
        axes: the dims over which each of them varies.
    """
    rank = operands[0].dim()
    try:
        with _AtOnce(rank, operands):
            result = mod(*operands)
        has_dims = isinstance(result, Tensor) and result.dim() not in (0, rank)
        if not has_dims and not isinstance(result, _Row):
            return result
    except _Mapped:
        pass
    # The innermost map runs over the last axis.
    for axis in reversed(range(rank)):
        dims = tuple(0 if axis in own else None for own in axes)
        mod = torch.vmap(mod, in_dims=dims, randomness="different")
    slices = [
        operand[tuple(slice(None) if axis in own else 0 for axis in range(rank))].clone()
        for operand, own in zip(operands, axes, strict=True)
    ]
    return mod(*slices)


class _Mapped(Exception):
    """A function has to be mapped: it calls what sees more than one element, or writes into one."""


class _AtOnce(TorchFunctionMode):
    """Scores and indices are tensors of `rank` dims; anything else is the same for all scores."""

    def __init__(self, rank: int, operands: Sequence[Tensor]) -> None:
        super().__init__()
        self.rank = rank
        self.operands = list(operands)  # and what may be an alias of one
        self.inside = False  # whether a call is the mode's own

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        if func is Tensor.__getitem__:
            return self._look_up(*args)
        # Operators such as `1 - s` are wrapped, which Dynamo of torch 2.15 tells as their name.
        # That of torch 2.13 knows the methods of a name only once it is a str.
        name = str(getattr(func, "__wrapped__", func).__name__)
        self._check(func, name, args, kwargs)
        result = func(*args, **kwargs)
        if name in _ALIASES and self._is_operand(args[0]):
            self.operands.append(result)
        return result

    def _check(self, func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Raise _Mapped unless a call sees each element alone, and writes into no operand."""
        arguments = [*args, *kwargs.values()]
        for x in (*args, *kwargs.values()):
            if isinstance(x, (list, tuple)):
                arguments += x
        if any(isinstance(x, _Row) for x in arguments):
            raise _Mapped
        if self._is_operand(_written(name, args, kwargs)):
            raise _Mapped
        dims = [x.dim() for x in arguments if isinstance(x, Tensor)]
        if self.rank not in dims:
            if name in RANDOM:
                raise _Mapped
        elif func not in _PLAIN:
            known = name in ELEMENTWISE
            if not known or any(n not in (0, self.rank) for n in dims):
                raise _Mapped

    def _is_operand(self, tensor: Any) -> bool:
        return any(tensor is x for x in self.operands)

    def _look_up(self, table: Tensor, index: Any) -> Any:
        at = index if isinstance(index, tuple) else (index,)
        varies = any(isinstance(i, Tensor) and i.dim() == self.rank for i in at)
        if not varies and table.dim() != self.rank:
            return table[index]
        return _Row(self, table, table.dim(), ())[at]


def _written(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What a call such as `add_` or `__iadd__`, or one with `inplace=True`, may write into."""
    if "out" in kwargs:
        return kwargs["out"]
    in_place = any(x is True for x in (*args, kwargs.get("inplace")))
    if name.startswith("__"):
        in_place |= name.startswith("__i") and f"__{name[3:]}" in ELEMENTWISE
    return args[0] if args and (in_place or name.rstrip("_") + "_" == name) else None


class _Row:
    """Elements of a table, at each score's own place in its first dims."""

    def __init__(self, mode: _AtOnce, table: Tensor, dims: int, at: tuple[Any, ...]) -> None:
        self.mode, self.table, self.at = mode, table, at
        self.dims = dims  # of the table: asking it would be a call that the mode sees

    def __getitem__(self, index: Any) -> Any:
        at = (*self.at, *(index if isinstance(index, tuple) else (index,)))
        for i in at:
            whole = isinstance(i, Tensor) and i.dtype not in (torch.bool, torch.uint8)
            if not whole and (not isinstance(i, (int, torch.SymInt)) or isinstance(i, bool)):
                raise _Mapped
        if len(at) < self.dims:
            return _Row(self.mode, self.table, self.dims, at)
        return self._inside(lambda: self.table[at])

    def _inside(self, function: Callable[[], Tensor]) -> Tensor:
        before, self.mode.inside = self.mode.inside, True
        try:
            return function()
        finally:
            self.mode.inside = before

    def _elements(self) -> Tensor:
        """All of a place in one last dim."""
        return self.table[self.at].flatten(len(self.at) - self.dims)

    def sum(self) -> Tensor:
        return self._inside(lambda: self._elements().sum(-1))

    def mean(self) -> Tensor:
        return self._inside(lambda: self._elements().mean(-1))

    def amax(self) -> Tensor:
        return self._inside(lambda: self._elements().amax(-1))

    def amin(self) -> Tensor:
        return self._inside(lambda: self._elements().amin(-1))

    def any(self) -> Tensor:
        return self._inside(lambda: self._elements().any(-1))

    def all(self) -> Tensor:
        return self._inside(lambda: self._elements().all(-1))

    max, min = amax, amin

    def __getattr__(self, name: str) -> NoReturn:
        raise _Mapped

    @classmethod
    def __torch_function__(cls, *arguments: Any) -> NoReturn:
        raise _Mapped


def _mapped(*arguments: Any) -> NoReturn:
    raise _Mapped


_OPERATORS = """
    add radd sub rsub mul rmul truediv rtruediv pow rpow matmul rmatmul neg abs invert and or lt le
    gt ge eq ne bool len iter contains
"""
for _name in _OPERATORS.split():
    setattr(_Row, f"__{_name}__", _mapped)
