"""A measuring stick from outside, measured in the same run: `--floor PATH`.

In: a script that prints JSON lines about plain kernels in bf16. A line has `act` ("silu,
tanh.approx"), B, H, N, D, and the TFLOP/s `fwd` and `bwd`. Out: measurements of a contender "floor
FORM", so that ours can be held against the floor of the same form of the activation.
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
    """The figures of a script, given with its arguments; its faults go to stderr and end there."""
    command = [sys.executable, *script]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=budget, env=dict(env)
        )
        text = done.stdout
    except subprocess.TimeoutExpired as late:
        # On POSIX what was read so far comes as bytes, whatever `text` says.
        text = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        print(f"floor: not done after {budget:.0f} s", file=sys.stderr)
    for line in text.splitlines():
        try:
            fields = json.loads(line)
            yield from measurements(fields)
        except (ValueError, KeyError, TypeError):
            sys.stderr.write(f"floor: {line}\n")


def measurements(fields: Row) -> Iterator[Row]:
    """One line of the stick as forward and backward measurements."""
    activation, form = fields["act"].split(", ")
    shape = (fields["B"], fields["H"], fields["N"], fields["D"])
    case = Case(activation, "none", *shape, "bfloat16", "cuda")
    for measure, key in (("forward", "fwd"), ("backward", "bwd")):
        tflops = float(fields[key])
        ms = case.flops * WEIGHT[measure] / tflops / 1e9
        found = Measurement(dataclasses.asdict(case), f"floor {form}", measure, ms, tflops)
        yield dataclasses.asdict(found)
