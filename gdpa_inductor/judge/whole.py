"""The verdict on a pair of graphs."""

from __future__ import annotations

from torch.fx import GraphModule

from .._compat import shapes
from .._compat.autograd import plain_torch
from .autograd import check_dropped, check_reach, check_saved, check_tangent, check_views, note_view
from .interpret import Claim, Claims, Fault, SideBySide
from .proof import Proof
from .record import SIZE_OF_ELEMENTS, Incomplete
from .verdict import Verdict


def judged(before: GraphModule, after: GraphModule, claims: Claims | None = None) -> Verdict | None:
    """What `validate` says that has no memory."""
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
        message = f"{type(error).__name__}: {error}"
        message = SIZE_OF_ELEMENTS if shapes.asks_for_elements(error) else message
        return Verdict(message, whole.node, invalid=False)
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
