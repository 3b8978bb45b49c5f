"""Other people's kernels, with published figures.

Their counts in counts.json are of the machine code of flash-attn-4 4.0.0b36 (CuTe DSL 4.8.1), and
of GDPA at 2c128ab (4.4.2, fast_gelu), compiled without a GPU. "One CTA" is FA_DISABLE_2CTA=1.
"""

from collections.abc import Callable
from dataclasses import replace

from . import blackwell
from .engine import Machine
from .kernels import Prediction, Problem, above, costs, dealt, timed
from .machines import B200, B300
from .subjects import counts

# Machines whose figures are published. Two have clocks that their source says, and that of PR 2280
# is taken to be the highest. GDPA's has a power, by one of its figures. A GB300 is taken to have
# 152 multiprocessors.
SOURCES = {
    "FA PR 2605, B200": replace(B200, mhz=1755),
    "FA PR 2605, GB300": replace(B300, name="GB300", processors=152, mhz=1957),
    "FA PR 2280, B200": replace(B200, mhz=1965),
    "GDPA, B200": replace(B200, power=476.0),
}
# Clocks until a CTA of a jagged launch has found its sequence among 1152: each by one figure.
SEARCH = {"forward": 20000.0, "backward": 37500.0}


def fa4_forward(machine: Machine, p: Problem) -> Prediction:
    family = "b300" if machine.mufu > 16 else "b200"
    parts = counts(f"fa4 {p.dim} {family} forward")
    pair = p.dim > 64  # with two CTAs a buffer has half of the keys
    return dealt(machine, blackwell.Forward(p.dim, parts, 6, 1, True, True, pair), p, 256)


def jagged_forward(machine: Machine, p: Problem) -> Prediction:
    parts = counts(f"fa4 {p.dim} b200 forward, one CTA")
    schedule = blackwell.Forward(p.dim, parts, 3, 1, True, True, start=SEARCH["forward"])
    return dealt(machine, schedule, p, 256)


def gdpa_forward(machine: Machine, p: Problem) -> Prediction:
    schedule = blackwell.Forward(p.dim, counts(f"gdpa {p.dim} b200 forward"), 3, early=True)
    return dealt(machine, schedule, p, 256)


def five_products(
    name: str, sums: int, start: float, before: float
) -> Callable[[Machine, Problem], Prediction]:
    """before: bytes an element of dQ that the kernels before and after this one move."""

    def predicted(machine: Machine, p: Problem) -> Prediction:
        blocks = above(p.count, 128)
        parts = counts(f"{name} {p.dim} b200 backward")
        schedule = blackwell.FiveProducts(p.dim, parts, sums, blocks, start)
        found = costs(machine, schedule)
        rounds = above(blocks * p.batch * p.heads, machine.processors)
        clocks = found.clocks(rounds, above(p.length, 128))
        main = timed(machine, clocks, p.bytes(8, 8), found)
        return replace(main, seconds=main.seconds + p.bytes(before, 0) / machine.hbm)

    return predicted


KERNELS: dict[str, tuple[int, Callable[[Machine, Problem], Prediction]]] = {
    "FA4 forward": (2, fa4_forward),
    "FA4 forward, jagged": (2, jagged_forward),
    "GDPA forward": (2, gdpa_forward),
    "FA4 backward": (5, five_products("fa4", 4, 0.0, 14)),
    "FA4 backward, jagged": (5, five_products("fa4", 4, SEARCH["backward"], 14)),
    "GDPA backward": (5, five_products("gdpa", 2, 0.0, 4)),
}
