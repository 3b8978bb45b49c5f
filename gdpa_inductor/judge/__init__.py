"""A judge of rewrites: facts that torch itself states, and nothing of the matcher's.

    validate(before, after, replaced) -> the first fault, or None

    record      every ATen operation of a run, operands as places in storages
    inputs      fakes as the inputs were before the graph ran
    interpret   both graphs side by side; what they have in common is run once
    elements    elements of logged tensors, evaluated backwards; rules in `operations`, `jagged`
    samples     the coordinates and values that are tried
    fused       a call of gdpa::attention
    proof       is the fused result what it stands for; `compare` weights, and their `gradients`
    autograd    what the output reaches, and what is kept for the backward
    adjoint     autograd functions of the user whose backward is known
    memory      verdicts of earlier processes
    whole       the verdict on a pair of graphs, of all of these

It imports torch and the language of score programs. It never sees what the matcher has read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.fx import GraphModule

from . import memory
from .verdict import Verdict

if TYPE_CHECKING:
    from .interpret import Claims

__all__ = ["Claims", "Verdict", "judged", "validate"]


def validate(
    before: GraphModule, after: GraphModule, claims: Claims | None = None
) -> Verdict | None:
    """Whether `after` computes what `before` does, with every effect and gradient; None if so.

    Args:
        claims: for `after` and each of its bodies, its nodes and those of `before` that they stand
            for. Needed only where one fused call feeds another with no common node between; a
            claim is decided like any.
    """
    place = memory.place_of(before, after)
    if place is not None and place.exists():
        return None
    verdict = judged(before, after, claims)
    if verdict is None and place is not None:
        memory.remember(place)
    return verdict


def judged(before: GraphModule, after: GraphModule, claims: Claims | None = None) -> Verdict | None:
    """The same, whatever was found before."""
    from .whole import judged  # a tenth of the package, for who finds no verdict on disk

    return judged(before, after, claims)
