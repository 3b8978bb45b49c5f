"""The time of the chunked form and of stock Inductor, estimated from measured rates."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from ..kernels import devices
from ..kernels.blocked import chunks
from ..kernels.blocked.fused import WHOLE, WIDEST
from ..problem import Problem
from ..program.expr import POSITIONS, postorder
from .backends import backend, hint

# The most that the estimated time may be, relative to stock's: by default, and for profit="memory".
# An estimate that is level is not sure to win.
LEAST, SLACK = 0.98, 1.2
SHORT = 1024  # rates of stored P and dS were measured from so many queries and keys on
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Rates:
    """The rates of a GPU. Precisions are "half", "tf32", "ieee" and "double"."""

    whole: dict[str, float]  # FLOP/s of products of all scores, by precision
    chunk: dict[str, float]  # FLOP/s of products of a chunk, by precision
    fused: float  # FLOP/s of the kernel that computes S and the program, with up to WHOLE channels
    deep: float  # the same with more channels
    forward: float  # FLOP/s of a fused forward
    both: float  # FLOP/s of Triton's kernel of P and dS
    both_cute: float  # the same of CuTe's
    stored: float  # FLOP/s of products of P and dS that it has stored
    memory: float  # bytes/s of scores that a program reads from memory and writes to it
    cache: float  # the same for the scores of a chunk, part of which stay in the L2 cache
    crowded: float  # additions/s to a small table
    longer: float  # seconds for a score, for a function that outlasts the product beside it
    call: float  # seconds of the CPU for a call of the operator
    step: float  # the same for a training step where P and dS are stored, beside its launches
    launch: float  # seconds of the CPU for each kernel


# An H100 (docs/lab/2026-11-25-chunks.md). Only ratios count, and they are similar on other GPUs.
RATES = Rates(
    whole={"half": 560e12, "tf32": 300e12, "ieee": 48e12, "double": 33e12},
    chunk={"half": 400e12, "tf32": 200e12, "ieee": 30e12, "double": 20e12},
    fused=300e12,
    deep=200e12,
    forward=700e12,  # this, the next two, and `step`: docs/lab/2026-11-29-wide-training.md
    both=270e12,
    both_cute=450e12,
    stored=450e12,
    memory=3.0e12,
    cache=4.3e12,
    crowded=0.9e9,
    longer=0.9e-12,
    call=300e-6,
    step=600e-6,
    launch=35e-6,
)


LONG = frozenset({
    "expm1", "log", "log1p", "sin", "cos", "erf", "gelu", "elu", "softplus", "mish",
})  # fmt: skip


def long_functions(problem: Problem) -> float:
    """Seconds for a score that the program spends in the functions of `LONG`."""
    return RATES.longer * sum(x.op in LONG for x in postorder([problem.program.weight]))


def _operand_bytes(problem: Problem) -> int:
    """Of each score."""
    operands = zip(problem.program.aux, problem.aux_dtypes, strict=True)
    return sum(dtype.itemsize for spec, dtype in operands if spec.axes >= POSITIONS)


def _summed_bytes(problem: Problem, units: int) -> float:
    """Bytes for each score of the sums of biases' gradients. units: The (batch, head) of a chunk.

    dS is read. A sum of the chunk's batches in fp32 is stored, read, and added to the whole.
    """
    biases = [x for x in problem.program.aux if x.axes >= POSITIONS and x.kind == "f"]
    return sum(2 + (16 / units if "b" not in x.axes and units > 1 else 8) for x in biases)


def precision(problem: Problem) -> str:
    if problem.dtype == torch.float64:
        return "double"
    return "half" if problem.dtype.itemsize == 2 else devices.float32_precision()


@dataclass(frozen=True)
class Estimate:
    stock: float  # seconds of stock Inductor
    chunked: float  # seconds of the chunked form
    launches: int  # of the chunked form


def estimate(problem: Problem) -> Estimate:
    """The estimate for a forward, or for a training step. Sizes of 0 count as 1."""
    batch, heads, rows, cols = (max(hint(size), 1) for size in problem.sizes.values())
    dim, value_dim = hint(problem.head_dim), hint(problem.value_dim)
    scores, itemsize = batch * heads * rows * cols, problem.dtype.itemsize
    kind, fused, stored = precision(problem), problem.dtype in _HALF, _stored(problem)
    # In a forward the program reads S and writes P. In a backward it reads S and dP and writes dS;
    # in chunks it writes P too.
    products = (dim + value_dim) * (3 if problem.training else 1)
    stock = 2 * scores * products / RATES.whole[kind]
    stock += scores * itemsize * (5 if problem.training else 2) / RATES.memory
    stock += problem.crowded / RATES.crowded
    if stored:
        both = RATES.both_cute if _by_cute(problem) else RATES.both
        per_flop = 1 / RATES.forward + 1 / both
        # The library takes as long for 192 channels as for 256.
        wide = (2 * math.ceil(dim / WIDEST) + math.ceil(value_dim / WIDEST)) * WIDEST
        busy = 2 * scores * ((dim + value_dim) * per_flop + wide / RATES.stored)
        busy += scores * (2 * long_functions(problem) + 3 * _operand_bytes(problem) / RATES.cache)
        units = max(1, chunks.STORED // (rows * cols * 2 * itemsize))
        busy += scores * _summed_bytes(problem, min(units, batch)) / RATES.memory
        # Keys that heads share: their gradients are products of each head, and then summed.
        each = 4 if {hint(problem.key_heads), hint(problem.value_heads)} == {heads} else 8
        kernels = 1 + _parts(batch * heads, rows, cols, 2 * itemsize, chunks.STORED) * each
        return Estimate(stock, max(busy, RATES.step + kernels * RATES.launch), kernels)
    passes = 2 if problem.training else 1
    # P V of a chunk has all its rows. The products that add to a gradient are small.
    busy = 2 * scores * (value_dim / RATES.whole[kind])
    again = 2 * (dim + value_dim) if problem.training else 0
    if fused:
        rate = RATES.fused if dim <= WHOLE else RATES.deep
        busy += passes * scores * (2 * dim / rate + long_functions(problem))
        busy += passes * scores * _operand_bytes(problem) / RATES.cache
        busy += scores * itemsize * (4 if problem.training else 1) / RATES.cache
    else:
        busy += scores * itemsize * (6 if problem.training else 2) / RATES.cache
        again += dim * passes
    busy += 2 * scores * again / RATES.chunk[kind]
    kernels = _launches(batch * heads, rows, cols, itemsize, problem.training, fused)
    return Estimate(stock, max(busy, passes * RATES.call + kernels * RATES.launch), kernels)


def _launches(units: int, rows: int, cols: int, itemsize: int, training: bool, fused: bool) -> int:
    """How many kernels are launched, for so many (batch, head)."""
    parts = functools.partial(_parts, units, rows, cols, most=chunks.SCORES)
    kernels = parts(itemsize) * (2 if fused else 3)
    if training:
        kernels += parts((3 if fused else 2) * itemsize) * (5 if fused else 6)
    return kernels


def _parts(units: int, rows: int, cols: int, score_bytes: int, most: int) -> int:
    """How many chunks there are, of at most so many bytes each."""
    room = most // (rows * cols * score_bytes)
    if room:
        return math.ceil(units / room)
    return units * math.ceil(rows * cols * score_bytes / most)


def _stored(problem: Problem) -> bool:
    """Whether one kernel computes P and dS in a backward (`BlockOperands.stores`), and another
    backend has the forward.
    """
    dims = problem.head_dim, problem.value_dim
    return (
        problem.training
        and problem.device.type == "cuda"
        and devices.capability(problem.device) // 10 == 9
        and problem.dtype in _HALF
        and problem.dtype == problem.value_dtype
        and max(map(hint, dims)) <= WIDEST
        and not problem.jagged
        and not any(spec.is_table for spec in problem.program.aux)
        and not problem.program.seeds
    )


def _by_cute(problem: Problem) -> bool:
    """Whether CuTe's kernel computes P and dS."""
    kernel = backend("cute").weights
    return kernel is not None and kernel.refusal(problem, profit=False) is None


def described(problem: Problem) -> str:
    """What a report says of a problem in chunks."""
    text = f"about {estimate(problem).launches} launches"
    if not _stored(problem):
        return text
    return f"{text}, P and dS by {'CuTe' if _by_cute(problem) else 'Triton'}"


def sizes_vary(problem: Problem) -> bool:
    return not all(isinstance(size, int) for size in problem.sizes.values())


def padded_to_all(problem: Problem) -> str:
    """Jagged sides are padded to their bound, here as in the unfused form."""
    return "a jagged side without a bound is padded to all its rows" if problem.unbounded else ""


def slower(problem: Problem, allowed: float = LEAST) -> str:
    step = "training" if problem.training else "inference"
    where = f"{step} with head dims {problem.head_dim} and {problem.value_dim} in chunks"
    if sizes_vary(problem):
        return f"{where} is slow where sizes vary: each call plans its chunks anew"
    short = min(hint(problem.rows), hint(problem.cols)) < SHORT
    if short and allowed < 1 and _stored(problem):
        return f"{where} was measured from {SHORT} queries and keys on"
    seconds = estimate(problem)
    ratio = seconds.chunked / seconds.stock
    if ratio <= allowed:
        return ""
    return f"{where} is estimated at {ratio:.2f} times the unfused form's time"
