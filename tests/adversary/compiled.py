"""Programs compiled in full, by this package and by stock Inductor; plain ones at sizes of kernels.

Ours is wrong where stock Inductor agrees with eager, or runs, and ours does not. A program on which
stock fails as well is not counted. Ranges resume from their results file like any other.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from gdpa_inductor import gdpa_backend, rewrite

from .generator import generate
from .judging import enter
from .program import FLOATING, Program, arguments_of, make_operands
from .runner import Outcome, _calls, first_difference, in_eager, said, settings

KERNELS = ("triton", "cute", "chunked", "auto")
Verdict = tuple[str, str]
Backend = str | Callable


def run_compiled(
    seed: int, judge: str = "both", device: str = "cpu", kernels: tuple[str, ...] = ()
) -> Outcome:
    """The program of a seed through Inductor twice, with all of its tensors on a device.

    kernels: backends, one of which has to run a plain program at sizes of kernels.
    """
    scale = "kernels" if kernels else "small"
    program = replace(generate(seed, scale), device=device)
    return compiled(program, judge, kernels[seed % len(kernels)] if kernels else "")


def compiled(program: Program, judge: str = "both", kernel: str = "") -> Outcome:
    """A program through Inductor twice. kernel: the backend that has to run its regions."""
    outcome = Outcome.of(program, "right")
    with settings(program):
        if (known := in_eager(program, outcome)) is None:
            return outcome
        *_, eager = known
        options: dict = {"gdpa.profit": False} | ({"gdpa.kernel": kernel} if kernel else {})
        if judge == "verify" and program.door != "export":
            options["gdpa.verify"] = True
        counters = torch._dynamo.utils.counters
        counters.clear()
        ours = _verdict(program, eager, gdpa_backend, options)
        if "NaN or infinity" in ours[1]:
            # What a mask covers may be infinite: left out it is 0, in eager NaN (docs/masks.md).
            counters.clear()
            ours = _verdict(program, eager, gdpa_backend, {**options, "gdpa.skip": False})
        outcome.matches = counters["gdpa"]["matched"]
        outcome.lowered = {k: v for k, v in counters["gdpa"].items() if k.startswith("lowered_")}
        counters.clear()
        stock = _verdict(program, eager, "inductor", None) if ours[0] != "right" else ("right", "")
    outcome.status, outcome.fault = ours
    outcome.forms = {kernel or "gdpa": (*ours, outcome.matches), "inductor": (*stock, 0)}
    if stock[0] != "right":
        outcome.status, outcome.fault = "dynamo", f"stock: {stock[1]}; ours: {ours[1]}"
    return outcome


def _verdict(program: Program, eager: list, backend: Backend, options: dict | None) -> Verdict:
    """How one backend does on fresh operands."""
    torch._dynamo.reset()
    entry = enter(program)
    try:
        if program.door == "export":
            function = _exported(program, entry.module, options)
        else:
            function = torch.compile(
                entry.function, backend=backend, options=options, dynamic=_dynamic(program)
            )
        mine = [call(function, True) for call in _calls(program, entry.module)]
    except Exception as error:
        return "crash", said(error)
    finally:
        torch.set_grad_enabled(True)
    fault = first_difference(program, mine, eager)
    return ("wrong", fault) if fault else ("right", "")


def _dynamic(program: Program) -> bool | None:
    """Half of the jagged programs with several batches are compiled for all sizes at once."""
    if program.lengths and program.varies and program.seed % 2:
        return True
    return None if program.varies else False


def _exported(program: Program, module: torch.nn.Module, options: dict | None):
    """Export, rewrite under our options, if there are any, then stock Inductor."""
    operands = make_operands(program, FLOATING[program.dtype])
    exported = torch.export.export(module, tuple(arguments_of(program, operands)))
    if options is not None:
        ours = {name.removeprefix("gdpa."): value for name, value in options.items()}
        exported, report = rewrite(exported, **ours)
        torch._dynamo.utils.counters["gdpa"]["matched"] = len(report.matches)
    return torch.compile(exported.module(), backend="inductor", dynamic=False)
