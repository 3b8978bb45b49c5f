"""`python -m gdpa_inductor.proving.child FAMILY DEVICE FILE`: the process that may fail.

It proves one family, or times the families `FAMILY` of the form "forward+backward:speed". What it
does, and each result, is a line of JSON in FILE, written at once. So the last line names what a
hang or a crash came from:

    {"case": ..., "doing": what it does now}
    {"case": ..., "verdict": what is wrong, or ""}
    {"case": ..., "kernel": "cute" or "triton", "milliseconds": ...}
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

import torch

from ..kernels.cute.certificates import RIVALS, proving
from .watchdog import COMPILES, RUNS, SPEED, STARVES

Note = Callable[..., None]


def main(family: str, number: str, path: str) -> int:
    device = torch.device("cuda", int(number))
    torch.cuda.set_device(device)
    with open(path, "a", buffering=1, encoding="utf-8") as file:
        note = noting(file)
        if family.endswith(SPEED):
            return _time(family.removesuffix(SPEED).split("+"), device, note)
        proving(family)
        return _prove(family, device, note)


def noting(file: TextIO) -> Note:
    return lambda **line: print(json.dumps(line), file=file, flush=True)


def _prove(family: str, device: torch.device, note: Note) -> int:
    from .checks import checks_of, verdict

    direction = "forward" if family == "forward" else "backward"
    for name, make in checks_of(family, device):
        note(case=name, doing=COMPILES)
        try:
            run, eager, exact = make()
            run()  # launches are not waited for, so this ends even if a kernel does not
            note(case=name, doing=RUNS)
            torch.cuda.synchronize(device)
            fault = verdict(run, eager, exact, direction, device)
        except torch.OutOfMemoryError:
            note(case=name, doing=STARVES)
            return 1
        except Exception as error:  # the context may be lost: no other case can be trusted
            note(case=name, verdict=_described(error))
            return 1
        note(case=name, verdict=fault)
    return 0


def _time(families: list[str], device: torch.device, note: Note) -> int:
    from .cases import SHAPES
    from .speed import compiled, milliseconds

    for family, case in SHAPES:
        for kernel in RIVALS if family in families else ():
            about: dict[str, Any] = {"case": f"{family}, {case.name}", "kernel": kernel}
            note(**about, doing=COMPILES)
            try:
                run = compiled(family, case, kernel, device)
                run()
                note(**about, doing=RUNS)
                note(**about, milliseconds=milliseconds(run))
            except torch.OutOfMemoryError:
                note(**about, doing=STARVES)
                return 1
            except Exception as error:
                note(**about, verdict=_described(error))
                if kernel == RIVALS[0]:
                    return 1
    return 0


def _described(error: Exception) -> str:
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0]}"


if __name__ == "__main__":
    # Without the end of the interpreter: a fault of a library there is none of the kernels.
    os._exit(main(*sys.argv[1:]))
