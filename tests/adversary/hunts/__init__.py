"""Programs that people wrote to break the package; of those that prove the same, two are kept.

A hunt is one file `tests/adversary/hunts/NAME.py` that defines

    CASES: list[tuple[Callable, Callable[[], tuple]]]

and, if there are many that found nothing, `MORE` of them, which the slow tests run: one for each
branch, reason or kind of operand that no other program has.

Each case is a function of tensors and a function that makes its arguments. Both are plain torch:

    import torch

    def write_on_a_cast(q, k, v):
        wide = q.float()
        wide.mul_(0.5)
        return torch.relu(wide @ k.float().mT) @ v.float()

    def operands():
        three = (torch.randn(1, 2, 4, 8, dtype=torch.bfloat16) for _ in range(3))
        return tuple(x.requires_grad_() for x in three)

    CASES = [(write_on_a_cast, operands)]

The arguments are made anew for every run, under one seed. Floating leaves that ask for a gradient
get one. A function may be a `torch.nn.Module`; its parameters then count as arguments. The first
item of a case may also be a pair (function, before_backward): the second function gets the
arguments after the forward, as the caller of a training step does.

`rows.py` writes cases as tables, and has what programs share: `of_scores`, `scored`, `weighted` and
`attended` are programs of a function of the scores, the weights or the output.

`test_hunts.py` runs them all: outputs, arguments afterwards and every gradient of the rewritten
graph against eager. A case that eager refuses fails, so that no case goes stale.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from .rows import name_of


@dataclass(frozen=True)
class Case:
    """One program of a hunt."""

    name: str
    function: Callable
    make_arguments: Callable[[], tuple]
    before_backward: Callable | None = None


def cases(kind: str = "CASES") -> list[Case]:
    """The cases of every hunt, in the order of their names. kind: or "MORE"."""
    collected = []
    for hunt in pkgutil.iter_modules(__path__):
        if hunt.name.startswith("test_"):
            continue
        module = importlib.import_module(f"{__name__}.{hunt.name}")
        for entry, make_arguments in getattr(module, kind, ()):
            function, before = entry if isinstance(entry, tuple) else (entry, None)
            name = f"{hunt.name}: {name_of(entry)}"
            collected.append(Case(name, function, make_arguments, before))
    return collected
