"""Operands of test programs, written as a line of text each, and made from a seed.

A spec is `"[kind:] dim dim ..."`. A dim is a product of letters and integers, with an optional
offset: `"b n h*d"`, `"bool: b 1 n m"`, `"b n+1 d"`, `""` (a 0-dim tensor). The letters stand for
sizes that the caller gives. Kinds:

    float      normal values, asks for a gradient (no kind given means this)
    const      normal values, no gradient
    positive   in [0.5, 1.5], asks for a gradient: a divisor
    zero_one   floats 0.0 and 1.0, no gradient: a multiplicative mask
    bool       a mask, about two thirds True
    blocks     a mask, False in every second square of 90 rows and columns
    int        int64 zeros and ones
    count      int64 in [1, 7]: lengths, divisors, numbers of targets
    scalar     a Python int: the value of its one dim

Seeds count from that of the test, which GDPA_SEED overrides.
"""

from collections.abc import Mapping

import torch

# The seed of the test that runs; tests/conftest.py sets it.
first_seed = 0

DIFFERENTIABLE = ("float", "positive")
FLOATING = (*DIFFERENTIABLE, "const", "zero_one")


def split_spec(spec: str) -> tuple[str, tuple[str, ...]]:
    """`"bool: b n*h"` -> `("bool", ("b", "n*h"))`."""
    kind, colon, dims = spec.partition(":")
    return (kind.strip(), tuple(dims.split())) if colon else ("float", tuple(spec.split()))


def size_of(dim: str, sizes: Mapping[str, int]) -> int:
    """The value of one dim: `"n*h+1"` at `{"n": 5, "h": 3}` is 16."""
    product, _, offset = dim.partition("+")
    value = 1
    for factor in product.split("*"):
        value *= int(factor) if factor.isdigit() else sizes[factor]
    return value + int(offset or 0)


def make_operand(
    spec: str,
    sizes: Mapping[str, int],
    *,
    dtype: torch.dtype = torch.float64,
    generator: torch.Generator | None = None,
) -> torch.Tensor | int:
    """One operand. Floats have `dtype`; those that ask for a gradient are leaves."""
    kind, dims = split_spec(spec)
    shape = [size_of(dim, sizes) for dim in dims]
    if kind == "scalar":
        return shape[0]
    if kind == "count":
        return torch.randint(1, 8, shape, generator=generator)
    if kind == "blocks":
        places = [torch.arange(size) // 90 for size in shape]
        return sum(torch.meshgrid(*places, indexing="ij")) % 2 == 0
    if kind in ("bool", "int", "zero_one"):
        drawn = torch.rand(shape, generator=generator) < 0.65
        return drawn.to({"bool": torch.bool, "int": torch.int64, "zero_one": dtype}[kind])
    # Drawn in fp64 and rounded, so that every precision sees the same program.
    value = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "positive":
        value = 0.5 + value.sigmoid()
    return value.to(dtype).requires_grad_(kind in DIFFERENTIABLE)


def generator_of(seed: int = 0) -> torch.Generator:
    """The same draws whenever the test that runs asks for those of `seed`."""
    return torch.Generator().manual_seed(first_seed + seed)


def make_operands(
    specs: Mapping[str, str],
    sizes: Mapping[str, int],
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> dict[str, torch.Tensor | int]:
    """All operands of a program, by name, from one seed of the test."""
    generator = generator_of(seed)
    return {
        name: make_operand(spec, sizes, dtype=dtype, generator=generator)
        for name, spec in specs.items()
    }


def recast(operands: Mapping[str, object], dtype: torch.dtype) -> dict[str, object]:
    """Fresh leaves of the same values: floating operands in `dtype`, all else copied as it is."""

    def copy(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        duplicate = value.detach().clone()
        if duplicate.is_floating_point():
            duplicate = duplicate.to(dtype).requires_grad_(value.requires_grad)
        return duplicate

    return {name: copy(value) for name, value in operands.items()}
