"""Every option of the package, in one frozen dataclass.

Options are given in one of three ways: `torch.compile(m, backend="gdpa",
options={"gdpa.strict": True})`, keyword arguments of `GDPAPass`, or environment variables
(`GDPA_STRICT=1`). The first two override the environment.

The options for kernels are an argument of the op, as a short canonical string. So caches see them,
and so do backward graphs that are compiled later.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
import os
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, TypedDict

log = logging.getLogger("gdpa_inductor")
PREFIX = "gdpa."
VARIABLE = "GDPA_"
# The backends, the preferred first; each is a module of that name in lowerings/.
CHUNKED = "chunked"  # the backend for problems that no other runs
BACKENDS = ("cute", "triton", "cpu", CHUNKED)
REFERENCE = "reference"  # the unfused formula
KERNELS = ("auto", *BACKENDS, REFERENCE)
Kernel = Literal["auto", "cute", "triton", "cpu", "chunked", "reference"]
MEMORY: Final = "memory"
Profit = bool | Literal["memory"]
# The cost models that are tried in turn, until one accepts a problem.
LADDER: Mapping[Profit, tuple[Profit, ...]] = {
    True: (True,),
    MEMORY: (True, MEMORY),
    False: (True, MEMORY, False),
}


@dataclasses.dataclass(frozen=True)
class KernelOptions:
    """The options for a lowering. Their text is an argument of the op.

    kernel:         Which backend to use, or "auto".
    deterministic:  Every gradient is bitwise equal from run to run. False allows atomics.
    fast_math:      fp16 and bf16 kernels may use approximate functions of the hardware.
    skip:           Skip tiles where masks make value and gradients zero. Then NaN and infinity at
                    masked places do not spread.
    strict:         Raise if a lowering would fall back to the unfused formula.
    fp32_scores:    Chunks store scores in fp32 even for 16-bit operands. A rewrite sets it if the
                    model's first product is in fp32.
    """

    kernel: Kernel = "auto"
    deterministic: bool = True
    fast_math: bool = True
    skip: bool = True
    strict: bool = False
    fp32_scores: bool = False

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, _convert(type(self), f.name, getattr(self, f.name)))

    def __str__(self) -> str:
        fields = dataclasses.fields(self)
        changed = [
            (f.name, getattr(self, f.name)) for f in fields if getattr(self, f.name) != f.default
        ]
        return ",".join(f"{name}={value}" for name, value in changed)

    @staticmethod
    def parse(text: str) -> KernelOptions:
        """The inverse of `str`: "" is the default."""
        pairs = (item.split("=", 1) for item in text.split(",") if item)
        return KernelOptions(
            **{name: _convert(KernelOptions, name, value) for name, value in pairs}
        )


@dataclasses.dataclass(frozen=True)
class Options(KernelOptions):
    """All options.

    strict:  Also raise if a candidate is not fused, and UNSAFE or UNSUPPORTED.
    expect:  Raise unless exactly so many regions were rewritten.
    verify:  Compare fused and unfused results once, on the first real inputs.
    profit:  Apply the cost model. "memory" also rewrites regions that need less memory but may take
             up to 1.2 times the unfused form's time. False rewrites all regions.
    judge:   Check every rewrite independently before it is applied (docs/judge.md).
    prove:   Start `gdpa prove` in the background if kernels have no certificate on the device.
    summary: Log one line for each compiled model: how many regions were fused.
    """

    expect: int | None = None
    verify: bool = False
    profit: Profit = True
    judge: bool = True
    prove: bool = False
    summary: bool = True

    @property
    def kernel_options(self) -> KernelOptions:
        fields = dataclasses.fields(KernelOptions)
        return KernelOptions(**{f.name: getattr(self, f.name) for f in fields})

    @staticmethod
    def make(options: Mapping[str, Any] | None = None) -> Options:
        """From keyword names ("strict") or prefixed names ("gdpa.strict"), over the environment,
        over the defaults.

        Raises:
            ValueError: an unknown name (with the nearest known one), or a value of the wrong type.
        """
        values = {}
        for variable in os.environ:
            name = variable.removeprefix(VARIABLE).lower()
            if variable.startswith(VARIABLE) and name in NAMES:
                values[name] = _convert(Options, name, os.environ[variable])
            elif variable.startswith(VARIABLE):
                _warn_of(variable)
        for key, value in (options or {}).items():
            name = key.removeprefix(PREFIX)
            values[name] = _convert(Options, name, value)
        return Options(**values)


class OptionValues(TypedDict, total=False):
    """The keyword arguments of `explain`, `rewrite` and `GDPAPass`, for type checkers. The fields
    are those of `Options`, which says what they mean.
    """

    kernel: Kernel
    deterministic: bool
    fast_math: bool
    skip: bool
    strict: bool
    fp32_scores: bool
    expect: int | None
    verify: bool
    profit: Profit
    judge: bool
    prove: bool
    summary: bool


def split(options: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """(ours, Inductor's): ours are those whose name begins with "gdpa."."""
    ours = {k: v for k, v in (options or {}).items() if k.startswith(PREFIX)}
    return ours, {k: v for k, v in (options or {}).items() if k not in ours}


def check_names(theirs: Mapping[str, Any], known: Collection[str]) -> None:
    """That Inductor knows the options that are not ours, by name.

    Raises:
        ValueError: it does not; with the nearest name, of ours or of Inductor's `known`.
    """
    full = {**{name: name for name in known}, **{name: PREFIX + name for name in NAMES}}
    for name in theirs:
        if name.replace("-", "_") not in known:
            hint = _hint(name, {short: repr(long) for short, long in full.items()})
            raise ValueError(f"neither gdpa_inductor nor Inductor has an option {name!r}{hint}")


def _hint(name: str, known: Mapping[str, str]) -> str:
    """`; did you mean …?` with what `known` has for the nearest name, or ""."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"; did you mean {known[near[0]]}?" if near else ""


@functools.cache
def _warn_of(variable: str) -> None:
    """Once in a process."""
    variables = {name: VARIABLE + name.upper() for name in NAMES}
    hint = _hint(variable.removeprefix(VARIABLE).lower(), variables)
    log.warning("the environment sets %s, which is no option of gdpa_inductor%s", variable, hint)


NAMES = tuple(f.name for f in dataclasses.fields(Options))
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}


def _convert(cls: type, name: str, value: Any) -> Any:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    if name not in fields:
        hint = _hint(name, {field: PREFIX + field for field in fields})
        raise ValueError(
            f"unknown option {PREFIX}{name}{hint} (known: {', '.join(sorted(fields))})"
        )
    if name == "kernel":
        if value not in KERNELS:
            raise ValueError(f"{PREFIX}kernel must be one of {', '.join(KERNELS)}, not {value!r}")
        return value
    if name == "expect":
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
            return value
        if isinstance(value, str) and value.isdecimal():
            return int(value)
        raise ValueError(f"{PREFIX}expect must be a count of regions or None, not {value!r}")
    return _word(name, value, _TRUTH | {MEMORY: MEMORY} if name == "profit" else _TRUTH)


def _word(name: str, value: Any, words: Mapping[str, Any]) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    more = f" or {MEMORY!r}" if MEMORY in words else ""
    raise ValueError(f"{PREFIX}{name} must be true or false{more}, not {value!r}")
