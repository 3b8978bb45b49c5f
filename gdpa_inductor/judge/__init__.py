"""The judge: an independent check that a rewritten graph computes what the original does.

    validate(before, after, claims) -> the first fault, or None

It runs both graphs on fakes and compares them (docs/judge.md). It imports torch and the language of
score programs. It never sees what the matcher has read, so it does not share the matcher's errors.

    record      Logs every ATen operation of a run. Operands are places in storages.
    inputs      Fakes of the inputs, as they were before the graph ran.
    interpret   Runs both graphs side by side. Common nodes are run once.
    elements    Evaluates elements of logged tensors backwards. Rules: `operations`, `jagged`.
    samples     The coordinates and values that are tried.
    ranges      Whether a value lies in the range of those that are expected.
    fused       Reads a call of gdpa::attention.
    proof       Decides whether a fused result equals what it replaces, by `compare`, `gradients`.
                It has the verdict on a pair of graphs.
    autograd    What the output reaches, and what is saved for the backward.
    memory      Verdicts of earlier processes.

Terms: a *lane* is one sampled case; tensors of samples have an element for each lane. A *root* is a
tensor whose elements are drawn at random: an input, or the result of a call that has no rule.
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
        claims: For `after` and each of its bodies: from its nodes to the nodes of `before` that
            they replace. It is needed only if one fused call feeds another, with no common node
            between them. A claim is checked like any other pair.
    """
    place = memory.place_of(before, after)
    if place is not None and memory.knows(place):
        return None
    verdict = judged(before, after, claims)
    if verdict is None and place is not None:
        memory.remember(place)
    return verdict


def judged(before: GraphModule, after: GraphModule, claims: Claims | None = None) -> Verdict | None:
    """The same, without verdicts of earlier processes."""
    from .proof import judged  # a tenth of the package; not needed if a verdict is on disk

    return judged(before, after, claims)
