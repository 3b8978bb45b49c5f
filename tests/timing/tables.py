"""The tables of docs/timing_model.md and docs/blackwell.md."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from . import peers, subjects
from .engine import Machine
from .kernels import Prediction, Problem, cut_rounds, dealt, pairs, sides, together
from .machines import B200, B300, H200

FIGURES = Path(__file__).parent / "figures.json"
CALIBRATED = (1024, 8192)  # lengths on Hopper; the other lengths are held back
POWER = 700.0  # watts of the H200


@dataclass(frozen=True)
class Row:
    """A measured figure and its prediction, both in TFLOP/s."""

    source: str
    kernel: str
    problem: Problem
    measured: float
    predicted: float
    use: str
    bound: str

    @property
    def error(self) -> float:
        """Of the time."""
        return self.measured / self.predicted - 1


def figures() -> dict[str, list]:
    return json.loads(FIGURES.read_text())


def hopper(machine: Machine, kernel: str, activation: str, problem: Problem) -> Prediction:
    if kernel == "forward":
        return cut_rounds(machine, subjects.hopper_forward(activation, problem.dim), problem)
    return together(machine, subjects.hopper_backward(activation, problem.dim), problem)


def blackwell(machine: Machine, kernel: str, activation: str, problem: Problem) -> Prediction:
    if kernel == "forward":
        schedule = subjects.blackwell_forward(activation, problem.dim)
        return dealt(machine, schedule, problem, 128 * schedule.query_tiles)
    if subjects.merges(activation, problem):
        return pairs(machine, subjects.blackwell_pair(activation, problem.dim), problem)
    return sides(machine, subjects.blackwell_backward(activation, problem.dim), problem)


def hopper_rows(lasting: bool = False) -> Iterator[Row]:
    """By the measured clock. lasting: without a pause, by the clock that 700 W allow."""
    for kernel, activation, *sizes, ms, mhz, without_pause in figures()["hopper"]:
        problem, products = Problem(*sizes), 2 if kernel == "forward" else 5
        use = "calibration" if problem.length in CALIBRATED else "held back"
        own = replace(H200, mhz=mhz)
        if lasting:
            ms, own = without_pause, replace(H200, mhz=1980, power=POWER, dirty=0.0)
        if ms:
            found = hopper(own, kernel, activation, problem)
            rate = problem.flops(products) / ms / 1e9
            name = f"{activation} {kernel}"
            yield Row(
                "H200", name, problem, rate, found.tflops(problem, products), use, found.bound
            )


def published_rows() -> Iterator[Row]:
    for source, kernel, *sizes, rate, use in figures()["published"]:
        problem, (products, predict) = Problem(*sizes), peers.KERNELS[kernel]
        found = predict(peers.SOURCES[source], problem)
        tflops = found.tflops(problem, products)
        yield Row(source, kernel, problem, rate, tflops, use, found.bound)


def spread(rows: list[Row]) -> str:
    """Of the errors: their root mean square, and the largest."""
    errors = [row.error for row in rows]
    mean = (sum(x * x for x in errors) / len(errors)) ** 0.5
    return f"{mean:.1%}, at most {max(map(abs, errors)):.0%}, of {len(errors)}"


# Predictions of our kernels for Blackwell, by two clocks whose figures are published, and a B300.
MACHINES = {
    "B200, 1755 MHz": replace(B200, mhz=1755),
    "B200, 1965 MHz": replace(B200, mhz=1965),
    "B300, 1957 MHz": replace(B300, mhz=1957),
}
SHAPES = (  # those in the middle of each head dim are the dense ones of `gdpa prove`
    *((16, 4, 1024, 128), (16, 4, 2048, 128), (4, 4, 4096, 128)),
    *((16, 8, 1024, 64), (16, 4, 2048, 64), (4, 8, 4096, 64)),
    *((16, 4, 1024, 256), (16, 4, 2048, 256), (4, 4, 4096, 256), (16, 4, 2048, 192)),
)
FLOPS = {"forward": 2, "backward": 5}


def shape(p: Problem) -> str:
    return f"{p.batch}×{p.heads}×{p.length}×{p.dim}"


def head(*cells: str) -> list[str]:
    return [f"| {' | '.join(cells)} |", "|" + "---|" * len(cells)]


def hopper_table() -> str:
    """Errors of the time, by length."""
    rows, lengths = list(hopper_rows()), (512, 1024, 2048, 4096, 8192)
    lasting = list(hopper_rows(lasting=True))
    lines = head("kernel", *(f"N = {x}" + "*" * (x in CALIBRATED) for x in lengths))
    names = sorted({(row.problem.dim, row.kernel) for row in rows})
    for dim, kernel in names:
        own = [x for x in rows if (x.problem.dim, x.kernel) == (dim, kernel)]
        errors = {x.problem.length: f"{x.error:+.1%}" for x in own}
        lines.append(f"| {kernel}, D {dim} | " + " | ".join(errors[x] for x in lengths) + " |")
    for name, found in (("by the measured clock", rows), ("the clock predicted", lasting)):
        for use in ("calibration", "held back"):
            own = [x for x in found if x.use == use]
            lines += ["", f"Root mean square, {name}, {use}: {spread(own)}."]
    return "\n".join(lines)


def published_table() -> str:
    rows = list(published_rows())
    lines = head("source", "kernel", "N", "published", "model", "time", "bound")
    for x in rows:
        star = "*" * (x.use == "calibration")
        kernel, length = f"{x.kernel}, D {x.problem.dim}", f"{x.problem.length}{star}"
        figures = f"{x.measured:.0f} | {x.predicted:.0f} | {x.error:+.1%}"
        lines.append(f"| {x.source} | {kernel} | {length} | {figures} | {x.bound} |")
    for use in ("calibration", "held back"):
        lines += ["", f"Root mean square, {use}: {spread([x for x in rows if x.use == use])}."]
    return "\n".join(lines)


def predictions() -> Iterator[tuple[str, Problem, dict[str, Prediction]]]:
    """(what, problem, by machine): silu."""
    for sizes in SHAPES:
        problem = Problem(*sizes)
        for kernel in ("forward",) if problem.dim in subjects.WIDE else FLOPS:
            found = {
                name: blackwell(machine, kernel, "silu", problem)
                for name, machine in MACHINES.items()
            }
            yield kernel, problem, found


def prediction_table() -> str:
    lines = head("batch×heads×N×D", *MACHINES, "bound on a B200")
    for kernel, problem, found in predictions():
        rates = [f"{x.tflops(problem, FLOPS[kernel]):.0f}" for x in found.values()]
        bound = found["B200, 1755 MHz"].bound
        lines.append(f"| {kernel}, {shape(problem)} | {' | '.join(rates)} | {bound} |")
    return "\n".join(lines)


def prediction_file() -> str:
    """Milliseconds, for `PREDICTIONS`."""
    lines = []
    for kernel, problem, found in predictions():
        ms = {name: round(1e3 * x.seconds, 4) for name, x in found.items()}
        sizes = [problem.batch, problem.heads, problem.length, problem.dim]
        lines.append(json.dumps({"kernel": kernel, "shape": sizes, "ms": ms}))
    note = (
        "Predictions, not measurements: tests/timing, docs/timing_model.md. silu, bf16, do_bench."
    )
    body = ",\n    ".join(lines)
    return f'{{\n  "note": {json.dumps(note)},\n  "predictions": [\n    {body}\n  ]\n}}\n'
