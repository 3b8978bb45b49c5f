"""seed -> program: a plain one, or one with hostilities. The first of them go round the table."""

import re
from random import Random

from .decoys import write_whole
from .draft import Clash, Draft
from .hostilities import HOSTILITIES, Hostility
from .jagged import write_jagged
from .program import Operand, Program
from .regions import write_dense
from .sizes import STATIC

HEADER = """import math
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

"""


def _names(**facts: bool) -> tuple[str, ...]:
    items = facts.items()
    named = (h.name for h in HOSTILITIES if all(getattr(h, name) is fact for name, fact in items))
    return tuple(dict.fromkeys(named))


EXACT, ALONE = _names(exact=True), _names(alone=True)
HAZARDS, DECOYS = _names(exact=False, alone=False), _names(decoy=True)
# These settle much of a program, so that they clash with others, and are drawn more often.
CLASHING = (
    *("integers", "lengths", "jvp", "vmap", "torch.func", "write after", "jagged", "inputs"),
    *("write through", "the caller", "inference_mode", "autocast", "module", "checkpoint"),
    *("export", "functional_call", "sizes of zero", "special values in mask", "write on a"),
    *("write to the source", "chained", "write before", "constants", "formulas", "autograd"),
    *("dead", "symbolic", "weights scaled", "second attention", "scores", "write moves"),
    *("write between", "hooks", "keys in pages", "pages written"),
)
WEIGHTS = {
    names: [1.8 if name.startswith(CLASHING) else 1.0 for name in names]
    for names in (EXACT, HAZARDS)
}
# How many of fifty programs are plain, or begin with a hostility of a table. Those that begin with
# a harmless one have harmless ones only.
OF_FIFTY = ((10, ("",)), (16, EXACT), (6, ALONE), (18, HAZARDS))
DTYPES = ("float64", "float64", "float32", "bfloat16")
PLAIN_DTYPES = ("float64", "float64", "float64", "float32", "bfloat16")
TRAINING = ("all", "all", "all", "some", "none")
WRITERS = {"jagged": write_jagged, "whole": write_whole}


def generate(seed: int, scale: str = "small") -> Program:
    """The program of a seed: the same text and values on every machine. scale: "kernels" for a
    plain program at sizes of kernels.
    """
    first, turn = ("", seed) if scale == "kernels" else _first(seed)
    for attempt in range(20):
        draft = Draft(Random(f"adversary {seed} {attempt}"), scale, turn)
        try:
            names = _planned(draft, first, alone=attempt >= 15) if first else ()
            return finish(seed, draft, names)
        except Clash:
            continue
    raise AssertionError(f"seed {seed}: {first} cannot be written")


def _first(seed: int) -> tuple[str, int]:
    """The hostility that a seed begins with, each name of a table in turn; "" for a plain one. And
    how many seeds began with it before.
    """
    round_, place = divmod(seed, 50)
    place = place * 7 % 50  # prime to fifty: neighbours are of different kinds
    for count, names in OF_FIFTY:
        if place < count:
            turn, number = divmod(count * round_ + place, len(names))
            return names[number], turn
        place -= count
    raise AssertionError("the counts make fifty")


def _plan(random: Random, name: str) -> Hostility:
    """One of the plans of a name."""
    return random.choice([h for h in HOSTILITIES if h.name == name])


def _planned(draft: Draft, first: str, *, alone: bool) -> tuple[str, ...]:
    """What is done to a program: the plans are in the draft."""
    random, exact = draft.random, first in EXACT
    _plan(random, first).plan(draft)
    draft.hostile = first not in ALONE  # which know nothing of the scores' layout
    if first in DECOYS:
        draft.label = "decoy"
    chosen = [first]
    wanted = 1 if alone else random.choice((2, 3, 3, 3) if exact else (1, 2, 2, 3))
    for _ in range(16):
        if len(chosen) == wanted or not draft.hostile:
            break
        # Two hazards hide each other: one refuses what the other one would spoil.
        table = EXACT if exact or random.random() < 0.3 else HAZARDS
        (another,) = random.choices(table, WEIGHTS[table])
        if another in chosen:
            continue
        restore = draft.snapshot()
        try:
            _plan(random, another).plan(draft)
            chosen.append(another)
        except Clash:
            restore()
    return tuple(chosen)


def finish(seed: int, draft: Draft, names: tuple[str, ...]) -> Program:
    """Settle what nobody cared about, write the region, and wrap it in its door."""
    random = draft.random
    if not names and draft.coin(0.25):
        draft.settle(family="jagged")
    if draft.scale == "kernels":
        draft.settle(dtype=random.choice(("bfloat16", "bfloat16", "float32")), training="all")
    if draft.settled.get("family") != "jagged":  # which has its own
        draft.fact("dtype", random.choice(DTYPES if draft.hostile else PLAIN_DTYPES))
    draft.fact("training", random.choice(TRAINING))
    if draft.fact("training") == "some":
        draft.fact("frozen", tuple(random.sample(("q", "k", "v", "bias"), 2)))
    WRITERS.get(draft.settled.get("family", ""), write_dense)(draft)
    jagged = draft.fact("family") == "jagged"
    if jagged and not draft.hostile and not draft.sides:
        draft.danger()
    return Program(
        seed=seed,
        source=_source(draft),
        operands=list(draft.operands.values()),
        dtype=draft.fact("dtype"),
        label=draft.label,
        hostilities=names,
        family=draft.fact("family"),
        sizes=(draft.sizes, *draft.further),
        lengths=tuple(draft.lengths),
        regions=draft.regions,
        sides="".join(x for x in "qk" if x in draft.sides) if jagged and not names else None,
        door=draft.fact("door", "call"),
        before_backward=draft.fact("before_backward", ""),
        literal=draft.fact("literal", False),
        capture_scalars=draft.fact("capture_scalars", False),
        spelling="; ".join(draft.notes),
    )


def _arguments(draft: Draft) -> list[Operand]:
    return [x for x in draft.operands.values() if x.place == "argument"]


def _size_lines(draft: Draft) -> list[str]:
    """`n = q.shape[2]` for the letters that vary, literals for the others; of those in use."""
    named = draft.settled.get("named", "")
    text = "\n".join([*draft.lines, *draft.outputs])
    uses = lambda letter: letter not in named and re.search(rf"\b{letter}\b", text)
    read = {x: _read_size(draft, x) for x in draft.sizes if x not in STATIC and uses(x)}
    text += "\n".join(read.values())
    static = {x: draft.sizes[x] for x in draft.sizes if x in STATIC and uses(x)}
    return [f"    {x} = {value}" for x, value in (static | read).items()]


def _read_size(draft: Draft, letter: str) -> str:
    """The simplest expression over shapes of operands whose value is the size `letter`."""
    expressions: list[tuple[int, str]] = []
    for operand in draft.operands.values():
        if operand.place == "base" or operand.kind == "scalar":
            continue
        name = operand.name if operand.place == "argument" else f"self.{operand.name}"
        for axis, dim in enumerate(operand.dims):
            product, plus, more = dim.partition("+")
            factors = product.split("*")
            others = [x for x in factors if x != letter]
            if letter in factors and all(x in STATIC or x.isdigit() for x in others):
                text = f"{name}.shape[{axis}]"
                text = f"({text} - {more})" if plus else text
                expressions.append((len(dim), " // ".join([text, *others])))
    return min(expressions)[1] if expressions else str(draft.sizes[letter])


def _source(draft: Draft) -> str:
    names = ", ".join(x.name for x in _arguments(draft))
    result = ", ".join([draft.o, *draft.outputs])
    wrap = draft.fact("wrap", None)
    lines = [*_size_lines(draft), *draft.lines]
    if draft.fact("door", "call") == "call":
        head = f"def f({names}):"
    else:
        head = f"def forward(self, {names}):"
    if wrap is None:
        body = [*lines, f"    return {result}"]
    else:
        body = wrap(draft, [*lines, f"    return {result}"], [x.name for x in _arguments(draft)])
    text = "\n".join([head, *body])
    if draft.fact("door") != "call":
        indented = "\n".join("    " + line if line else "" for line in text.splitlines())
        text = f"class Model(torch.nn.Module):\n{indented}"
    return HEADER + draft.fact("preamble", "") + "\n" + text + "\n"
