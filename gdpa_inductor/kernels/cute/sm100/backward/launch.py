"""Launch the backward on Blackwell: one kernel for each side. This runs on the host."""

from dataclasses import dataclass

from torch import Tensor

from ... import launch
from ...backward.jagged_biases import StoredTiling
from ...backward.launch import BackwardCall
from ...backward.roots import masked
from ...launcher import Launcher
from ...plan import LaunchPlan
from ..config import SIDES, Sm100Config


@dataclass(frozen=True)
class SideForm:
    """What the form of a call decides for one side.

    launcher: The launcher, or None if there is nothing to launch. clears: The kernel may not store
    all scores, so they are set to zero before.
    """

    launcher: Launcher | None
    clears: bool


def side_in(plan: LaunchPlan, side: str, stored: int | None) -> SideForm:
    assert isinstance(plan.config, Sm100Config)
    config = plan.config.side(side, stored)
    if plan.empty:
        return SideForm(None, True)
    return SideForm(launch.launcher(config), masked(config))


def gradients(call: BackwardCall, letters: str) -> dict[str, Tensor]:
    """The gradients in `letters`, and those that the same kernels compute.

    The rows side stores dS as the gradient of a bias. So it runs too if that is wanted.
    """
    grads: dict[str, Tensor] = {}
    for side, own in SIDES.items():
        stored = call.stored if side == "rows" else None
        if set(letters) & set(own) or stored is not None:
            outputs = [call.room(letter) for letter in own]
            _launch(call, side, stored, outputs)
            grads |= dict(zip(own, outputs, strict=True))
    return grads


def _launch(call: BackwardCall, side: str, stored: int | None, outputs: list[Tensor]) -> None:
    form = call.plan.once(side_in, side, stored)
    if form.launcher is None:
        for x in outputs:
            x.zero_()
    for scores in (None,) if stored is None else call.launches:
        if scores is not None and scores.hulls is None and form.clears:
            call.zero(scores.scores)
        if form.launcher is not None:
            call.launch(form.launcher, (call.grad_out, *outputs), scores)


def overwrites(config: Sm100Config, stored: int) -> bool:
    # Whether the gradient of a bias may overwrite the bias: no, because both sides read it.
    return False


def tiling(config: Sm100Config) -> StoredTiling:
    return StoredTiling(config.rows, config.cols, by_keys=False)
