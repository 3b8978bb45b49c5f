"""seed -> program. The first hostility of a program goes round the table; more are drawn."""

from random import Random

from .draft import Clash, Draft
from .hostilities import HOSTILITIES, Hostility
from .jagged import write_jagged
from .program import Operand, Program
from .regions import write_dense

HEADER = """import math
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

"""


def _names(*, exact: bool) -> tuple[str, ...]:
    return tuple(dict.fromkeys(h.name for h in HOSTILITIES if h.exact == exact))


EXACT, HAZARDS = _names(exact=True), _names(exact=False)
# These settle much of a program, so that they clash with others, and are drawn more often.
CLASHING = (
    *("integers", "lengths", "jvp", "vmap", "torch.func", "write after", "jagged", "inputs"),
    *("write through", "the caller", "inference_mode", "autocast", "module", "checkpoint"),
    *("export", "functional_call", "sizes of zero", "special values in mask", "write on a"),
    *("write to the source", "chained"),
)
WEIGHTS = {
    names: [2.0 if name.startswith(CLASHING) else 1.0 for name in names]
    for names in (EXACT, HAZARDS)
}
# Of fifty programs so many begin with a harmless hostility, and have harmless ones only.
EXACT_OF_FIFTY = 22
DTYPES = ("float64", "float64", "float32", "bfloat16")
TRAINING = ("all", "all", "all", "some", "none")


def generate(seed: int) -> Program:
    """The program of a seed: the same text and values on every machine."""
    first = _first(seed)
    for attempt in range(20):
        random = Random(f"adversary {seed} {attempt}")
        try:
            return _written(seed, random, first, alone=attempt >= 15)
        except Clash:
            continue
    raise AssertionError(f"seed {seed}: {first} cannot be written")


def _first(seed: int) -> str:
    """The hostility that a seed begins with: each name of a table in turn."""
    round_, place = divmod(seed, 50)
    before = place * EXACT_OF_FIFTY // 50
    exact = (place + 1) * EXACT_OF_FIFTY // 50 > before
    names = EXACT if exact else HAZARDS
    count = EXACT_OF_FIFTY if exact else 50 - EXACT_OF_FIFTY
    return names[(count * round_ + (before if exact else place - before)) % len(names)]


def _plan(random: Random, name: str) -> Hostility:
    """One of the plans of a name."""
    return random.choice([h for h in HOSTILITIES if h.name == name])


def _written(seed: int, random: Random, first: str, *, alone: bool) -> Program:
    draft = Draft(random)
    exact = first in EXACT
    _plan(random, first).plan(draft)
    chosen = [first]
    wanted = 1 if alone else random.choice((1, 2, 3, 3, 3) if exact else (1, 1, 2, 2, 3))
    for _ in range(16):
        if len(chosen) == wanted:
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
    return finish(seed, draft, tuple(chosen))


def finish(seed: int, draft: Draft, names: tuple[str, ...]) -> Program:
    """Settle what nobody cared about, write the region, and wrap it in its door."""
    random = draft.random
    draft.fact("dtype", random.choice(DTYPES))
    draft.fact("training", random.choice(TRAINING))
    if draft.fact("training") == "some":
        draft.fact("frozen", tuple(random.sample(("q", "k", "v", "bias"), 2)))
    draft.fact("family", random.choice(("heads", "heads", "batch", "gqa", "bnhd")))
    write = write_jagged if draft.fact("family") == "jagged" else write_dense
    write(draft)
    source = _source(draft)
    return Program(
        seed=seed,
        source=source,
        operands=list(draft.operands.values()),
        dtype=draft.fact("dtype"),
        label="hazard" if draft.hazard else "exact",
        hostilities=names,
        family=draft.fact("family"),
        door=draft.fact("door", "call"),
        before_backward=draft.fact("before_backward", ""),
        literal=draft.fact("literal", False),
        capture_scalars=draft.fact("capture_scalars", False),
        second=_second(draft),
        spelling="; ".join(draft.notes),
    )


def _second(draft: Draft) -> dict[str, tuple[int, ...]]:
    """Shapes of a second call, where some sizes are symbolic."""
    grown = draft.fact("dynamic_by", 0)
    if not grown:
        return {}
    return {
        x.name: tuple(s + grown if i in x.dynamic else s for i, s in enumerate(x.shape))
        for x in draft.operands.values()
    }


def _arguments(draft: Draft) -> list[Operand]:
    return [x for x in draft.operands.values() if x.place == "argument"]


def _source(draft: Draft) -> str:
    names = ", ".join(x.name for x in _arguments(draft))
    result = ", ".join([draft.o, *draft.outputs])
    wrap = draft.fact("wrap", None)
    lines = draft.lines
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
