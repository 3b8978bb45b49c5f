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

It imports torch and the language of score programs. It never sees what the matcher has read.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import GraphModule

from .._compat import shapes
from .._compat.autograd import plain_torch
from . import memory
from .autograd import check_dropped, check_reach, check_saved, check_tangent, check_views, note_view
from .interpret import Claim, Claims, Fault, SideBySide
from .proof import Proof
from .record import SIZE_OF_ELEMENTS, Incomplete

__all__ = ["Claims", "Verdict", "judged", "validate"]


@dataclass(frozen=True)
class Verdict:
    """A rewrite that is not to be applied. invalid: it computes something else; else that could not
    be told. node: of the rewritten graph, where the fault is known to lie.
    """

    reason: str
    node: str = ""
    invalid: bool = True


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
    whole = SideBySide(_agree, claims or {})
    try:
        whole.run(before, after)
        check_saved(whole)
        check_views(whole)
        check_dropped(whole)
    except Fault as fault:
        return Verdict(str(fault), fault.node)
    except Incomplete as reason:
        return Verdict(str(reason), whole.node, invalid=False)
    except Exception as error:  # whatever an interpretation may raise, the model stays as it is
        told = f"{type(error).__name__}: {error}"
        told = SIZE_OF_ELEMENTS if shapes.asks_for_elements(error) else told
        return Verdict(told, whole.node, invalid=False)
    return None


def _agree(whole: SideBySide, claim: Claim) -> bool:
    proof = Proof(whole, claim)
    with plain_torch():
        holds = proof.decide()
        check_tangent(claim)
    if holds:
        check_reach(whole, claim)
        note_view(whole, claim)
        with plain_torch():
            proof.check_gradients()
    return holds
