"""Rules of the CuTe backend: which problems its kernels cannot run, and which Triton runs better.

Each function returns a reason, or "" if the rule does not apply. cutlass is not imported here.

A value that is too wide for one launch runs in slices. Each launch computes some channels of V
(`slice_of`), and computes all scores again. In exchange no score is stored, and tiles that a mask
empties are skipped. An estimate of the time is compared with those of chunks and of the unfused
form.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from ..._compat import shapes
from ..._compat.versions import version_of
from ...kernels.cute import certificates
from ...kernels.cute.architectures import CONFIGS, config_of
from ...kernels.cute.backward import roots
from ...kernels.cute.config import (
    BOX,
    PACKAGE,
    VERSIONS,
    KernelConfig,
    classes,
    no_sums,
    slice_of,
    slices_of,
    strange_page,
    unsupported,
)
from ...kernels.cute.sm90.config import NARROW
from ...kernels.cute.weights import no_such_weights
from ...operands import dtype_name
from ...problem import Problem
from ...program.expr import POSITIONS
from ...program.tile_classes import boundable, classify, classify_by_tables
from ...rejection import Code
from ..backends import Rule, draws, hint, strange_places
from ..chunk_costs import LEAST, SLACK, estimate, long_functions, padded_to_all, sizes_vary
from ..triton import one_tile
from ..triton.rules import MAX_HEAD_DIM

# Where the kernels for Hopper begin to be faster than Triton's (docs/hopper.md):
ENOUGH = 26  # log2 of the scores of a call
ENOUGH_OF_WIDE = 25  # the same at head dims above 64
ENOUGH_OF_TABLES = 22  # the same where tables are looked up: Triton takes three times as long
FEW = 64  # up to so many queries Triton's forward reads keys and values as fast as a copy
LONG = 256  # if a side is jagged: the longest sequence has at least so many queries
# The most padded scores for each existing score, if all sequences had the mean length. If queries
# and keys have the same lengths there are more: a third more if lengths spread evenly from 0 on.
PADDED = 6
# Rates of a Hopper GPU, as fast as the H100 of `chunk_costs.RATES`
# (docs/lab/2026-11-26-slices.md). They serve Blackwell too, where nothing was measured.
RATE = 560e12  # FLOP/s
SINGLE = 1.15e-12  # seconds for a score, for each aux operand that TMA does not load
DIAGONAL = 100  # under a mask a query is assumed to meet half of the keys and so many more
WIDE_BLOCKS = (64, 80, 96, 112, 128)  # keys of a block at head dims above `NARROW`
LAUNCH = 30e-6  # seconds of the CPU for a launch


def no_kernel(problem: Problem) -> str:
    """Why the device cannot run the kernels, or ""."""
    if config_of(problem.device):
        return ""
    major, minor = torch.cuda.get_device_capability(problem.device)
    *others, last = (f"{major}.{minor}" for major, minor in CONFIGS)
    known = f"{', '.join(others)} or {last}"
    return f"the CuTe kernel needs compute capability {known}, this device has {major}.{minor}"


def too_old(problem: Problem) -> str:
    """As `no_kernel`, for devices older than all that have kernels, or ""."""
    reason = no_kernel(problem)
    if not reason or torch.cuda.get_device_capability(problem.device) > min(CONFIGS):
        return ""
    return reason


def unusable() -> str:
    """Why CuTe DSL cannot be used, or ""."""
    version = installed()
    lowest, below = (".".join(map(str, bound)) for bound in VERSIONS)
    if version is None:
        return f"{PACKAGE} is not installed (pip install 'gdpa-inductor[cute]')"
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if VERSIONS[0] <= parts < VERSIONS[1]:
        return ""
    return f"{PACKAGE} {version} is not one of the tested versions, {lowest} to below {below}"


@functools.cache
def installed() -> str | None:
    return version_of(PACKAGE)


def unsupported_operands(problem: Problem) -> str:
    """Why the kernels do not take these operands, or ""."""
    dims = [shapes.size_hint(x) for x in (problem.head_dim, problem.value_dim)]
    if None in dims:
        return "a head dim that is known only at run time"
    kind = _kind(problem)
    return unsupported(
        kind,
        (problem.dtype, problem.value_dtype),
        (int(dims[0] or 0), slice_of(kind, int(dims[1] or 0))),
        [*map(dtype_name, problem.aux_dtypes)],
    )


def few_queries(problem: Problem) -> str:
    """Why Triton is better for few queries, or "". A CTA here computes 128 queries or more."""
    if _no_rival(problem):
        return ""
    if problem.needs:
        matrices, others = problem.needs[:3], problem.needs[3:]
        alike = shapes.statically_known_true(problem.key_heads == problem.heads)
        fits = all(matrices) and not any(others) and alike and one_tile.fits(problem)
        return "for so few queries Triton's backward reads keys and values once" if fits else ""
    if hint(problem.rows) > FEW:
        return ""
    return f"for up to {FEW} queries Triton has smaller tiles, and parts the keys"


def triton_is_faster(problem: Problem) -> str:
    """Why Triton is faster on this GPU, or "" (docs/hopper.md)."""
    kind = config_of(problem.device)
    if kind is None or not kind.rivalled or _no_rival(problem):
        return ""
    if problem.unbounded:
        return f"on {kind.gpu} Triton is faster where no `max_seqlen` bounds the lengths"
    if problem.jagged and hint(problem.rows) < LONG:
        return (
            f"on {kind.gpu} Triton is faster on fewer than {LONG} queries, where a side is jagged"
        )
    if any(spec.is_table for spec in problem.program.aux):
        return _few_scores(problem, kind.gpu, ENOUGH_OF_TABLES)
    narrowest, widest = sorted(_dims(problem))
    dense_forward = not (problem.needs or problem.jagged)
    narrow = 64 if dense_forward and widest > 64 else 32
    if narrowest <= narrow:
        return f"on {kind.gpu} Triton is faster here at head dims up to {narrow}"
    few = _few_scores(problem, kind.gpu, _enough(problem))
    return few or ("" if problem.jagged else _of_each_score(problem, kind.gpu))


def _enough(problem: Problem) -> int:
    """log2 of the fewest scores for which the time that the GPU saves is more than the CPU's
    (docs/lab/2026-11-29-thresholds.md).
    """
    program, (narrowest, widest) = problem.program, sorted(_dims(problem))
    own = boundable(program.aux)
    if classify_by_tables([program.weight], program.aux, own).bounds:
        # A kernel makes a table of what a mask tensor hides.
        dense_forward = not (problem.needs or problem.jagged)
        return ENOUGH + (any(problem.needs[3:]) or (dense_forward and widest <= 64))
    return ENOUGH_OF_WIDE if narrowest > 64 else ENOUGH


def _few_scores(problem: Problem, gpu: str, enough: int) -> str:
    if _scores(problem) >= 1 << enough:
        return ""
    return f"on {gpu} Triton starts sooner, which counts below 2^{enough} scores"


def _of_each_score(problem: Problem, gpu: str) -> str:
    """Why Triton is faster with aux operands that have an element for each score, or ""."""
    aux = problem.program.aux
    own = [number for number, spec in enumerate(aux) if set(spec.access) >= POSITIONS]
    dtypes = [problem.aux_dtypes[number] for number in own if aux[number].kind == "f"]
    if not problem.needs and any(dtype != problem.dtype for dtype in dtypes):
        return f"on {gpu} Triton is faster in a forward with a bias of another dtype"
    masks = [number for number in own if aux[number].kind == "b"]
    if not masks or dtypes or 64 < max(_dims(problem)) <= 128:
        return ""
    if classify([problem.program.weight], aux, masks).bounds:
        return f"on {gpu} mask tensors are Triton's at head dims up to 64 and above 128"
    return ""


def mostly_padded(problem: Problem) -> str:
    """Why Triton is faster for gradients of biases of jagged sequences, or ""."""
    kind = config_of(problem.device)
    if kind is None or not any(problem.needs[3:]) or padded(problem) <= PADDED:
        return ""
    return (
        f"on {kind.gpu} Triton is faster for gradients of operands between the products where "
        f"there are {PADDED} times as many padded scores as others"
    )


def padded(problem: Problem) -> float:
    """How many padded scores there are for each existing score, with sequences of mean length."""
    ratio = 1.0
    for _, total, longest in problem.sides.values():
        ratio *= max(1.0, hint(problem.batch) * hint(longest) / max(hint(total), 1))
    return ratio


def no_such_gradients(problem: Problem) -> str:
    """Why the backward cannot compute the wanted gradients, or ""."""
    if not problem.needs:
        return ""
    key, value = problem.key_heads, problem.value_heads
    needs, dtype = problem.needs[3:], dtype_name(problem.dtype)
    if any(needs) and problem.unbounded:
        return f"{roots.NONE} where no `max_seqlen` bounds the lengths"
    return (
        roots.no_such_dims(_kind(problem), _dims(problem))
        or roots.no_such_heads(key, value, shapes.statically_known_true(key == value))
        or roots.no_such_sums(str(problem.program))
        or roots.no_such_biases(str(problem.program), needs, dtype)
    )


def training_is_slower(problem: Problem) -> str:
    """Why a training step is slower than the unfused form, or "".

    If there is no backward here, Triton's runs, or one in chunks. At wide heads that of Triton is
    slower than the unfused form (triton/rules.py). Chunks have an estimate (chunk_costs.py).
    """
    if problem.needs or not problem.training:
        return ""
    return roots.no_such_dims(_kind(problem), _dims(problem))


def _no_rival(problem: Problem) -> bool:
    """Whether Triton refuses the problem because V is too wide. Here such values run in slices."""
    return hint(problem.value_dim) > MAX_HEAD_DIM


def _slices(problem: Problem) -> int:
    """How many launches a forward needs: 1 if a launch has room for all channels of V."""
    kind = config_of(problem.device)
    return 1 if kind is None else slices_of(kind, hint(problem.value_dim))


def _scores(problem: Problem) -> int:
    """How many scores the problem has at most. A jagged side is bounded by its total rows too."""
    dense = (problem.batch, problem.rows, problem.cols)
    batch, rows, cols = (hint(size) for size in dense)
    bounds = [batch * rows * cols]
    others = {"q": cols, "k": rows}
    bounds += [hint(side.total) * others[letter] for letter, side in problem.sides.items()]
    return hint(problem.heads) * min(bounds)


def slower_than_chunks(problem: Problem) -> str:
    """Why chunks are faster for a forward, or ""."""
    if _slices(problem) == 1 or sizes_vary(problem) or padded_to_all(problem):
        return ""
    forward = replace(problem, training=False)
    return _complaint(problem, estimate(forward).chunked, 1.0, "chunks")


def slices_are_slower(problem: Problem, allowed: float = LEAST) -> str:
    """Why slices are slower than the unfused form, or ""."""
    if _slices(problem) == 1:
        return ""
    return _complaint(problem, estimate(problem).stock, allowed, "the unfused form")


def _complaint(problem: Problem, other: float, allowed: float, than: str) -> str:
    count = _slices(problem)
    ratio = max(_seconds(problem), count * LAUNCH) / other
    if ratio <= allowed:
        return ""
    return f"values in {count} slices are estimated at {ratio:.2f} times the time of {than}"


def _seconds(problem: Problem) -> float:
    program, count = problem.program, _slices(problem)
    masked = classify([program.weight], program.aux)
    shown = 1.0
    if masked.skips and not masked.bounds:
        shown = min(1.0, 0.5 + DIAGONAL / max(hint(problem.cols), 1))
    channels = count * hint(problem.head_dim) + hint(problem.value_dim)
    return _scores(problem) * shown * (2 * channels / RATE + count * _slow_reads(problem))


def _slow_reads(problem: Problem) -> float:
    """Seconds for a score that slow reads and slow functions add to the products."""
    operands = zip(problem.program.aux, problem.aux_dtypes, strict=True)
    single = [x for x, dtype in operands if x.axes >= POSITIONS and dtype != problem.dtype]
    return SINGLE * len(single) + long_functions(problem)


def _kind(problem: Problem) -> type[KernelConfig]:
    kind = config_of(problem.device)
    assert kind  # else `no_kernel` has refused
    return kind


def _dims(problem: Problem) -> tuple[int, int]:
    return hint(problem.head_dim), hint(problem.value_dim)


def pages(problem: Problem) -> str:
    """Why the kernels do not read keys in pages, or ""."""
    if problem.page is None:
        return ""
    page = shapes.size_hint(problem.page)
    if page is None:
        return "pages of a size that is known only at run time"
    blocks = (BOX,) if max(_dims(problem)) <= NARROW else WIDE_BLOCKS
    reasons = (strange_page(_kind(problem), page, block) for block in blocks)
    return next(filter(None, reasons), "")


def uncertified(problem: Problem) -> str:
    """Why the kernels are not trusted with the problem on this machine, or ""."""
    families = ["backward" if problem.needs else "forward"]
    families += ["biases"] * any(problem.needs[3:])
    reasons = (certificates.objection(problem.device, family) for family in families)
    return next(filter(None, reasons), "")


def uncertified_weights(problem: Problem) -> str:
    """The same of the kernel of P and dS."""
    return certificates.objection(problem.device, "weights")


def was_slower(problem: Problem) -> str:
    """Why a certificate says that Triton is faster, or ""."""
    if config_of(problem.device) is None or _no_rival(problem):
        return ""
    family = "backward" if problem.needs else "forward"
    shape = certificates.shape_of(problem.jagged, max(_dims(problem)))
    return certificates.slower(problem.device, family, shape)


def no_weights(problem: Problem) -> str:
    """Why there is no kernel of P and dS for a chunk, or ""."""
    query, key, value, *others = problem.needs or (True,) * 3
    if any(others) or not (value and (query or key)):
        return "the CuTe kernel stores P and dS, and no other terms"
    return no_such_weights(_kind(problem), problem.program, hint(problem.cols))


def late_operands(problem: Problem) -> str:
    """Why Triton's kernel of P and dS is faster with these aux operands, or ""."""
    kind, aux = config_of(problem.device), problem.program.aux
    if kind is None or not kind.stores_weights:
        return ""
    config = kind(
        dtype_name(problem.dtype),
        *_dims(problem),
        program=str(problem.program),
        aux=tuple(map(dtype_name, problem.aux_dtypes)),
        vectors=frozenset(number for number, spec in enumerate(aux) if "kv_idx" in spec.axes),
        bounded=frozenset(boundable(aux)),
    )
    if classes(config, roots.roots_of(config.program)).bounds:
        return "Triton's kernel of P and dS leaves out tiles that a mask tensor hides"
    early = config.weights_config
    if early is not None and early.vectors != config.vectors:
        return "the CuTe kernel of P and dS would read operands of keys one by one"
    return ""


_ANY = (
    Rule(Code.DEVICE, too_old, quiet=True),
    Rule(Code.DEVICE, no_kernel),
    Rule(Code.DEVICE, lambda problem: unusable()),
    Rule(Code.DTYPE, unsupported_operands),
)
REFUSES = (
    *_ANY,
    Rule(Code.POINTWISE_OP, strange_places),
    Rule(Code.LOWERING, no_such_gradients),
    Rule(Code.LOWERING, pages),
    Rule(Code.LOWERING, lambda problem: no_sums(_kind(problem), problem.program)),
    Rule(Code.LOWERING, draws),
)
_TRAINING = Rule(Code.SLOWER, training_is_slower)
PAYS = (_TRAINING, Rule(Code.SLOWER, slices_are_slower))
FRUGAL = (_TRAINING, Rule(Code.SLOWER, lambda problem: slices_are_slower(problem, SLACK)))
DOUBTS = (Rule(Code.DEVICE, uncertified),)
YIELDS = (
    Rule(Code.SLOWER, few_queries),
    Rule(Code.SLOWER, triton_is_faster),
    Rule(Code.SLOWER, mostly_padded),
    Rule(Code.SLOWER, slower_than_chunks),
    Rule(Code.SLOWER, was_slower),
)
# Of the kernel that stores P and dS of a chunk:
OF_WEIGHTS = (*_ANY, Rule(Code.LOWERING, no_weights))
WEIGHTS_DOUBTS = (Rule(Code.DEVICE, uncertified_weights),)
WEIGHTS_YIELD = (Rule(Code.SLOWER, late_operands),)
