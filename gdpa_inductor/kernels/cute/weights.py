"""P and dS of all scores, stored in 16 bits: `weights` launches the kernel.

Chunks of a backward multiply them by torch's library (`kernels/blocked`). Both sides are dense.
Keys and values that heads or batches share may be expanded: then they are read once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..._compat.device import empty
from ...operands import Operands, score_shape
from ...program.score_mod import ScoreMod
from ...rejection import GDPAError
from . import launch
from .backward.launch import unlike_output
from .backward.roots import masked
from .config import VECTOR, KernelConfig
from .launch import place
from .launcher import Launcher
from .plan import LaunchPlan, aligned, plan_of
from .replay import Record

# Where a mask skips tiles, a CTA takes so many. More CTAs than run at once even out the work.
RUN = 16
OTHERS = 1  # tiles that a CTA could compute while it loads other queries
FEWER = 16  # a launch leaves out up to one of so many CTAs


def weights(
    grad_out: Tensor,
    operands: Operands[Tensor],
    *,
    fast: bool = True,
    skip: bool = True,
    ctas: int = 0,
    stream: int | None = None,
    out: Sequence[Tensor] = (),
    kind: type[KernelConfig] | None = None,
    record: Record | None = None,
) -> list[Tensor]:
    """[P, dS], each [B, H, M, N] in the dtype of the query, contiguous.

    Args:
        grad_out: dO, [B, H, M, Dv].
        fast, skip, stream, kind, record: As in `launch.forward`.
        ctas: How many CTAs to launch. By default as many as run at once, or more under a mask.
        out: Memory for P and dS.

    Raises:
        GDPAError: The kernel does not take the operands. The message says why.
    """
    o = _unexpanded(operands)
    plan = plan_of(o, fast, skip, kind)
    reason = plan.once(_complaint) or unlike_output(grad_out, plan, o)
    if reason:
        raise GDPAError(reason)
    gradient, record = aligned(grad_out), record or Record(fails=True)
    given = (o.query, o.key, o.value, grad_out, *out)
    record.begin(given, o, plan.plain and gradient is grad_out)
    size = score_shape(o), o.query.dtype, o.query.device
    stored = list(out) or [record.add_buffer(empty(*size)) for _ in "ps"]
    if plan.empty:
        return [x.zero_() for x in stored]
    at_once, stream = place(o.query.device, ctas, stream)
    kernel = plan.once(_form, at_once)
    matrices, read = (gradient, *stored), plan.readable(o)
    form = plan.form_words(matrices)
    call = plan.call_words(read, matrices, None, ctas or kernel.ctas, stream)
    kernel.run(call, form)
    record.add_kernel(kernel.run, call, form, 3 + len(matrices), plan.scalars)
    record.finish(() if out else stored)
    return stored


def _unexpanded(o: Operands[Tensor]) -> Operands[Tensor]:
    """Keys and values with one batch or head, where all of them are the same memory."""
    key, value = (
        x[: 1 if x.stride(0) == 0 else None, : 1 if x.stride(1) == 0 else None]
        for x in (o.key, o.value)
    )
    return replace(o, key=key, value=value)


@dataclass(frozen=True)
class _Form:
    """What the form of a call decides about its launch."""

    run: Launcher
    ctas: int


def _form(plan: LaunchPlan, at_once: int) -> _Form:
    config = plan.config.weights_config
    assert config is not None
    batch, heads, _, _, rows, cols = plan.sizes
    across = -(-cols // config.cols)
    tiles = batch * heads * -(-rows // (config.tiles * config.rows)) * across
    even = max(at_once, tiles // RUN) if masked(config) else ctas_of(tiles, across, at_once)
    return _Form(launch.launcher(config), even)


def ctas_of(tiles: int, across: int, at_once: int) -> int:
    """How many CTAs compute tiles of equal cost: as many as run at once, or a few less.

    across: How many tiles have the same queries.
    """

    def time(ctas: int) -> int:
        each, left = -(-tiles // ctas), tiles % ctas
        # Where CTAs begin in the middle of a row of tiles, they come to other queries more often.
        aligned = not left and (each % across == 0 or across % each == 0)
        runs = max(1, each // across) if aligned else 1 - (1 - each) // across
        return each + OTHERS * (runs - 1)

    return min(range(at_once, at_once - at_once // FEWER - 1, -1), key=time)


def _complaint(plan: LaunchPlan) -> str:
    c = plan.config
    if c.jagged:
        return "a jagged side"
    return no_such_weights(type(c), c.mod, plan.sizes[5])


def no_such_weights(kind: type[KernelConfig], program: ScoreMod, cols: int) -> str:
    """Why there is no kernel of P and dS for a dense problem, or "". cols: How many keys."""
    if not kind.stores_weights:
        return f"no kernel for {kind.gpu} stores P and dS"
    if cols % VECTOR:
        return f"{cols} keys; the CuTe kernel stores P and dS of multiples of {VECTOR}"
    if program.summed is not None or program.seeds or any(x.is_table for x in program.aux):
        return "the CuTe kernel of P and dS takes no row sums, random numbers or tables"
    if program.gradients.score is None:
        return "the weights do not depend on the scores"
    return ""
