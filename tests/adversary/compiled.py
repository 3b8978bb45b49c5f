"""The second mode: programs compiled in full, by this package and by stock Inductor.

Ours is wrong where stock Inductor agrees with eager, or runs, and ours does not. A program on which
stock fails as well is not counted. Ranges resume from their results file like any other.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from gdpa_inductor import gdpa_backend, rewrite

from .generator import generate
from .judging import difference, enter
from .program import FLOATING, Program, arguments_of, make_operands
from .runner import Outcome, _calls, _said, settings

Verdict = tuple[str, str]
Backend = str | Callable


def run_compiled(seed: int, judge: str = "both", device: str = "cpu") -> Outcome:
    """One program through Inductor twice, with all of its tensors on a device."""
    program = replace(generate(seed), device=device)
    outcome = Outcome.of(program, "right")
    with settings(program):
        try:
            entry = enter(program)
            calls = _calls(program, entry.module)
            eager = [call(entry.function) for call in calls]
        except Exception as error:
            outcome.status, outcome.fault = "eager", _said(error)
            return outcome
        options = {"gdpa.profit": False}
        if judge == "verify" and program.door != "export":
            options["gdpa.verify"] = True
        ours = _verdict(program, eager, gdpa_backend, options)
        if "NaN or infinity" in ours[1]:
            # What a mask covers may be infinite: left out it is 0, in eager NaN (docs/masks.md).
            torch._dynamo.utils.counters.clear()
            ours = _verdict(program, eager, gdpa_backend, {**options, "gdpa.skip": False})
        outcome.matches = torch._dynamo.utils.counters["gdpa"]["matched"]
        torch._dynamo.utils.counters.clear()
        stock = _verdict(program, eager, "inductor", None) if ours[0] != "right" else ("right", "")
    outcome.status, outcome.fault = ours
    outcome.forms = {"gdpa": (*ours, outcome.matches), "inductor": (*stock, 0)}
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
            dynamic = None if program.second else False
            function = torch.compile(
                entry.function, backend=backend, options=options, dynamic=dynamic
            )
        mine = [call(function, True) for call in _calls(program, entry.module)]
    except Exception as error:
        return "crash", _said(error)
    finally:
        torch.set_grad_enabled(True)
    for i, (m, e) in enumerate(zip(mine, eager)):
        if fault := difference(program, m, e, second=i == 1):
            return "wrong", fault
    return "right", ""


def _exported(program: Program, module: torch.nn.Module, options: dict | None):
    """Export, rewrite under our options, if there are any, then stock Inductor."""
    operands = make_operands(program, FLOATING[program.dtype])
    exported = torch.export.export(module, tuple(arguments_of(program, operands)))
    if options is not None:
        ours = {name.removeprefix("gdpa."): value for name, value in options.items()}
        exported, report = rewrite(exported, **ours)
        torch._dynamo.utils.counters["gdpa"]["matched"] = len(report.matches)
    return torch.compile(exported.module(), backend="inductor", dynamic=False)
