"""Launch the backward on Blackwell: one kernel for each side. This runs on the host."""

from torch import Tensor

from ...backward.launch import BackwardCall, kernel_form
from ..config import SIDES


def gradients(call: BackwardCall, letters: str) -> dict[str, Tensor]:
    """The gradients in `letters`, and those that the same kernels compute."""
    grads: dict[str, Tensor] = {}
    for number, (side, own) in enumerate(SIDES.items()):
        # The rows side stores dS as the gradient of a bias. So it runs too if that is wanted.
        stores = side == "rows" and call.stored is not None
        if set(letters) & set(own) or stores:
            outputs = [call.room(letter) for letter in own]
            form = call.plan.once(kernel_form, number, call.stored)
            if form.launcher is None:
                for x in outputs:
                    x.zero_()
            call.run(form, (call.grad_out, *outputs), call.launches if stores else (None,))
            grads |= dict(zip(own, outputs, strict=True))
    return grads
