"""Whether one kernel computes all gradients of a backward, or one for each side.

A step is a tile of 128 queries and 128 keys. In cycles of a multiprocessor, its busiest unit takes
as long as these formulas say, a and b being the padded head dims of query and value
(docs/blackwell.md has their terms, and the counts of machine code):

    keys   max(8 (a + b), activation)
    rows   max(8 a + 6 b, activation)
    both   max(18 a + 8 b + 512, adding dQ, activation)
    pair   max(12 a + 8 b, 12 a + 6 b + 512, adding half of dQ, activation)

The pair of CTAs has a = 128.

cutlass is not imported here.
"""

import functools
from collections import Counter
from collections.abc import Sequence

from ....program.emission import emitted
from ....program.expr import OPS, POSITIONS, Expr, postorder
from ....program.fast import gated
from ....program.score_mod import ScoreMod
from ..backward.roots import roots_of

GAIN = 1.1  # one kernel is used if it is so much faster by this estimate
SCORES = 128 * 128  # of a step
# Bytes of dQ that a multiprocessor adds in a cycle, if all do: an NVIDIA H200's figure
# (docs/lab/2026-11-29-adds.md). Blackwell's is not known.
ADDED = 14.5
LEAST = 850.0  # the instructions of any program, and of the moves around it
READ = 1000.0  # of an operand with a number for each score
# Special functions for each score, 16 of which a multiprocessor computes in a cycle.
SPECIAL = ("tanh_approx", "exp2_approx", "log2_approx", "rcp_approx", "sqrt", "rsqrt", "exp", "log")
OWN = frozenset(name for name, op in OPS.items() if op.plain is None)


def one_kernel_pays(dims: tuple[int, int], ctas: int, program: str, fast: bool) -> bool:
    """dims: The padded head dims of query and value. ctas: As many compute a tile together."""
    a, b = dims
    active = activation(program, fast)
    sides = max(8 * (a + b), active) + max(8 * a + 6 * b, active)
    busy = 18 * a + 8 * b + 512
    if ctas > 1:
        a = 128
        busy = 12 * a + max(8 * b, 6 * b + 512)
    both = max(busy, 4 * 128 * a / ctas / ADDED, active)
    return sides >= GAIN * both


@functools.lru_cache(512)
def activation(program: str, fast: bool) -> float:
    """Cycles to compute P and dS of a step: of special functions, multiply-adds, or instructions.

    Programs in full accuracy take longer than this says.
    """
    mod, roots = ScoreMod.parse(program), roots_of(program)
    read = sum(set(x.access) >= POSITIONS or x.is_table for x in mod.aux)
    forms = [gated(root, mod.weight) for root in roots] if fast else roots
    special, fused = _counts(emitted(forms, OWN, fast))
    return max(special * SCORES / 16, fused * SCORES / 128, LEAST + READ * read)


def _counts(terms: Sequence[Expr]) -> tuple[int, int]:
    """(special functions, multiply-adds) for each score, the product of slope and dP among them."""
    nodes = [x for x in postorder(terms) if x.kind == "f"]
    uses = Counter([*terms, *(a for x in nodes for a in x.args)])
    sums = [x for x in nodes if x.op in ("add", "sub")]
    # A sum of a product that nothing else uses is one instruction.
    fused = sum(any(a.op == "mul" and uses[a] == 1 for a in x.args) for x in sums)
    products = sum(x.op == "mul" for x in nodes)
    return sum(x.op in SPECIAL for x in nodes), products + len(sums) - fused + 1
