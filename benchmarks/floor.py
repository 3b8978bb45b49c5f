"""An external reference for the speed, measured in the same run: `--floor PATH`.

In: a script that measures plain kernels in bf16 and prints JSON lines. A line has `act` (such as
"silu, tanh.approx"), B, H, N, D, and the TFLOP/s `fwd` and `bwd`. Out: measurements of a contender
"floor FORM". FORM is the form of the activation, such as "tanh.approx". So gdpa is compared with a
kernel that computes the activation in the same form.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .cases import Case
from .worker import WEIGHT, Measurement

Row = dict[str, Any]


def run_floor(script: Sequence[str], budget: float, env: Mapping[str, str]) -> Iterator[Row]:
    """The measurements of a script, as dicts.

    Lines that cannot be read, and a timeout after `budget` seconds, are only reported on stderr.

    script: The path of the script and its arguments.
    """
    command = [sys.executable, *script]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=budget, env=dict(env)
        )
        text = done.stdout
    except subprocess.TimeoutExpired as late:
        # On POSIX the output read so far is bytes, even with `text=True`.
        text = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        print(f"floor: not done after {budget:.0f} s", file=sys.stderr)
    for line in text.splitlines():
        try:
            fields = json.loads(line)
            yield from measurements(fields)
        except (ValueError, KeyError, TypeError):
            sys.stderr.write(f"floor: {line}\n")


def measurements(fields: Row) -> Iterator[Row]:
    """The forward and the backward measurement of one line of the script."""
    activation, form = fields["act"].split(", ")
    shape = (fields["B"], fields["H"], fields["N"], fields["D"])
    case = Case(activation, "none", *shape, "bfloat16", "cuda")
    for measure, key in (("forward", "fwd"), ("backward", "bwd")):
        tflops = float(fields[key])
        ms = case.flops * WEIGHT[measure] / tflops / 1e9
        measurement = Measurement(dataclasses.asdict(case), f"floor {form}", measure, ms, tflops)
        yield dataclasses.asdict(measurement)
