"""Our kernels as the model sees them: configurations, counts of their machine code, schedules."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from gdpa_inductor.kernels.cute.sm100.config import Sm100Config

from . import blackwell, hopper
from .code import Counts
from .kernels import Problem

COUNTS = Path(__file__).parent / "counts.json"
COMPILER = "4.8.1"  # CuTe DSL, of counts.json
PROGRAMS = {
    "silu": "silu(mul(s,{}))",
    "gelu_tanh": "gelu_tanh(mul(s,{}))",
    "relu": "relu(mul(s,{}))",
}
DIMS = (64, 128)
WIDE = {192: (8, 2), 256: (10, 1)}  # buffers of K and V, and of Q, of Blackwell's forward
KINDS = (
    "hopper forward",
    "hopper backward",
    "blackwell forward",
    "blackwell keys",
    "blackwell rows",
    "blackwell both",
)


class Frozen(dict[str, Counts]):
    """Counts by name, as a part of a schedule that is a key of a cache."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self.items())))


@cache
def stored() -> dict[str, dict[str, list[float]]]:
    return json.loads(COUNTS.read_text())


def counts(name: str) -> Frozen:
    """Those of a kernel, such as "silu 128 hopper forward"."""
    return Frozen({part: Counts(*x) for part, x in stored()[name].items()})


def name_of(activation: str, dim: int, kind: str) -> str:
    return f"{activation} {dim} {kind}"


def counted(activation: str, dim: int, kind: str) -> dict[str, Counts]:
    """From the machine code of the kernel, which is compiled for it. Needs CuTe DSL, and no GPU."""
    from gdpa_inductor.kernels.cute import launch
    from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
    from tests.emulator.disk_cache import cached
    from tests.kernels.cute_account import backward_binary, binary, disassembled

    from . import code

    family, which = kind.split()
    make = Sm90Config if family == "hopper" else Sm100Config
    config = make("bfloat16", dim, dim, PROGRAMS[activation].format(dim**-0.5))
    if which == "forward":
        kernel = binary(config)
        return code.hopper_forward(kernel) if make is Sm90Config else code.blackwell_forward(kernel)
    if make is Sm100Config:
        return code.blackwell_backward(backward_binary(config, which))
    backward = replace(config, kernel="backward")
    compiled = lambda: disassembled(lambda options: launch.compiled(backward, options))
    return code.hopper_backward(cached(compiled, "timing backward", backward))


def write() -> None:
    """Counts our kernels anew. Those of other people's kernels stay as they are."""
    found = dict(stored()) if COUNTS.exists() else {}
    for activation in PROGRAMS:
        for dim in DIMS:
            for kind in KINDS:
                parts = counted(activation, dim, kind)
                found[name_of(activation, dim, kind)] = {x: list(y) for x, y in parts.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(parts)}" for name, parts in sorted(found.items())]
    COUNTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def hopper_forward(activation: str, dim: int) -> hopper.Forward:
    tiles, stages = (3, 6) if dim <= 64 else (2, 4)
    return hopper.Forward(dim, tiles, stages, counts(name_of(activation, dim, KINDS[0])))


def hopper_backward(activation: str, dim: int) -> hopper.Backward:
    rows = 96 if dim <= 64 else 64
    return hopper.Backward(dim, rows, counts(name_of(activation, dim, KINDS[1])))


def blackwell_forward(activation: str, dim: int) -> blackwell.Forward:
    """Above head dim 128 the activation is that of 128."""
    stages, outputs = (6, 2) if dim <= 64 else (3, 1)
    parts = counts(name_of(activation, min(dim, 128), KINDS[2]))
    if dim in WIDE:
        stages, queries = WIDE[dim]
        return blackwell.WideForward(dim, parts, stages, queries=queries)
    return blackwell.Forward(dim, parts, stages, outputs, early=True)


def blackwell_backward(activation: str, dim: int) -> tuple[blackwell.Backward, blackwell.Backward]:
    keys, rows = (counts(name_of(activation, dim, kind)) for kind in KINDS[3:5])
    return blackwell.Backward(dim, True, keys), blackwell.Backward(dim, False, rows)


def blackwell_pair(activation: str, dim: int) -> blackwell.PairBackward:
    return blackwell.PairBackward(dim, counts(name_of(activation, dim, KINDS[5])))


def merges(activation: str, problem: Problem) -> bool:
    """Whether one kernel is Blackwell's backward."""
    program = PROGRAMS[activation].format(problem.dim**-0.5)
    config = Sm100Config("bfloat16", problem.dim, problem.dim, program)
    return config.merges(problem.length, problem.count)
