"""The suites: tables of cases and contenders, in the order in which they are measured.

In: `Selection`, the choices of the command line. Out: jobs. If the time runs out, the last jobs
are missing. So the most informative jobs come first, and slow ones that say little come last.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable

from .cases import Case
from .contenders import ANCHORS, COPY
from .models import MODELS
from .worker import Job

Shape = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True)
class Selection:
    """The choices of the command line. An empty field stands for the suite's own values.

    device:    "cpu" or "cuda".
    seconds:   The seconds of timing, for each contender and measure.
    peers:     The folder of the public kernels.
    rows:      Names of models.
    train:     The suite `models` trains the recommender instead.
    """

    device: str
    seconds: float
    contenders: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    activations: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    shapes: tuple[Shape, ...] = ()
    dtypes: tuple[str, ...] = ()
    peers: str = ""
    rows: tuple[str, ...] = ()
    train: bool = False


DENSE_SHAPES: tuple[Shape, ...] = (
    (64, 4, 512, 128),
    (32, 4, 1024, 128),
    (16, 4, 2048, 128),
    (4, 4, 8192, 128),
)
CPU_SHAPES: tuple[Shape, ...] = tuple((2, 4, n, 64) for n in (512, 1024, 2048, 4096))
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
# The number of tokens is about the same at every length, so that a GPU is full.
GRID_SHAPES: tuple[Shape, ...] = tuple(
    (max(1, min(64, 32768 // n)), 4, n, d) for d in (32, 64, 128, 256) for n in LENGTHS
)
# (dtype, float32 matmul precision): IEEE fp32, TF32 and bf16.
GRID_TYPES = (("float32", "highest"), ("float32", "high"), ("bfloat16", "highest"))


def jobs_of(
    cases: Iterable[Case], names: tuple[str, ...], measures: tuple[str, ...], pick: Selection
) -> list[Job]:
    """The jobs of some cases, without the contenders and measures that were not selected.

    On a CPU a case is one job, and its contenders take turns. On a GPU each contender is a job.
    """
    contenders = tuple(n for n in names if not pick.contenders or n in pick.contenders)
    measured = tuple(m for m in measures if not pick.measures or m in pick.measures)
    groups = [contenders] if pick.device == "cpu" else [(name,) for name in contenders]
    if not contenders or not measured:
        return []
    return [Job(c, g, measured, pick.seconds, pick.peers) for c in cases for g in groups]


def dense(pick: Selection) -> list[Job]:
    """silu and gelu_tanh in four variants: gdpa, stock Inductor, eager and softmax anchors."""
    activations = pick.activations or ("silu", "gelu_tanh")
    shapes = pick.shapes or DENSE_SHAPES
    (dtype,) = pick.dtypes or ("bfloat16",)

    def cases(variant: str, names: tuple[str, ...] = activations) -> list[Case]:
        if pick.variants and variant not in pick.variants:
            return []
        pairs = itertools.product(names, shapes)
        return [Case(a, variant, *shape, dtype, pick.device) for a, shape in pairs]

    anchors = tuple(sorted(ANCHORS)) if pick.device == "cuda" else ()
    every, pair = ("forward", "backward", "step"), ("gdpa", "inductor")
    jobs = jobs_of(cases("none"), ("gdpa",), every, pick)
    jobs += jobs_of(cases("none"), ("inductor",), ("forward", "step"), pick)
    jobs += jobs_of(cases("none", activations[:1]), anchors, every, pick)
    jobs += jobs_of(cases("causal"), pair, ("forward", "step"), pick)
    jobs += jobs_of(cases("bias"), pair, ("forward", "step"), pick)
    jobs += jobs_of(cases("buckets"), pair, ("forward", "step"), pick)
    jobs += jobs_of(cases("none"), ("eager",), ("forward", "step"), pick)
    # These are measured only if the command line names them.
    if "scores" in pick.variants:
        jobs += jobs_of(cases("scores"), pair, ("forward", "step"), pick)
    for name in ("gdpa-always", "gdpa-atomic", "gdpa-exact"):
        if name in pick.contenders:
            jobs += jobs_of(cases("none"), (name,), every, pick)
    return jobs + jobs_of(cases("none"), ("max-autotune",), ("forward", "step"), pick)


def grid(pick: Selection) -> list[Job]:
    """dtype and precision × head dim × length: gdpa and stock Inductor.

    gdpa may nowhere be slower, except where it reports a refusal.
    """
    cases = [
        Case(activation, variant, *shape, dtype, pick.device, precision)
        for dtype, precision in GRID_TYPES
        if not pick.dtypes or dtype in pick.dtypes or f"{dtype}/{precision}" in pick.dtypes
        for activation in pick.activations or ("silu",)
        for variant in pick.variants or ("none",)
        for shape in pick.shapes or GRID_SHAPES
    ]
    names = pick.contenders or ("gdpa", "inductor")
    return jobs_of(cases, names, ("forward", "step"), pick)


def cpu(pick: Selection) -> list[Job]:
    """fp32 on a CPU: gdpa and stock Inductor."""
    cases = [
        Case(activation, variant, *shape, dtype, "cpu")
        for activation in pick.activations or ("silu",)
        for variant in pick.variants or ("none",)
        for dtype in pick.dtypes or ("float32",)
        for shape in pick.shapes or CPU_SHAPES
    ]
    pick = dataclasses.replace(pick, device="cpu")
    names = pick.contenders or ("gdpa", "inductor")
    return jobs_of(cases, names, ("forward", "step"), pick)


# (batch, heads, length, head dim, value dim). WIDE_SHAPES have values too wide for fused kernels.
# DEEP_SHAPES, and EXACT_SHAPES in fp32, use fused kernels in inference only, or never.
WIDE_SHAPES = tuple(
    (32768 // n, 1, n, 128, width) for n in (1024, 2048, 4096) for width in (1024, 1536)
)
DEEP_SHAPES = tuple((32768 // n, 4, n, d, d) for d in (192, 256) for n in (1024, 2048, 8192))
EXACT_SHAPES = tuple((16384 // n, 4, n, d, d) for d in (64, 128) for n in (1024, 4096))


def wide(pick: Selection) -> list[Job]:
    """Problems for the chunked backend: wide values, wide heads, and fp32 without TF32.

    The contenders are gdpa's own choice, the chunked backend and stock Inductor.
    """
    kinds = (("relu2", "laplace"), WIDE_SHAPES, "bfloat16"), (("silu",), DEEP_SHAPES, "bfloat16")
    exact = ("silu",), EXACT_SHAPES, "float32"
    jobs: list[Job] = []
    for activations, shapes, dtype in (*kinds, exact):
        if pick.dtypes and dtype not in pick.dtypes:
            continue
        cases = [
            Case(activation, "none", *shape[:4], dtype, pick.device, value_dim=shape[4])
            for activation in activations
            for shape in shapes
            if not pick.activations or activation in pick.activations
            if not pick.shapes or shape[:4] in pick.shapes
        ]
        triton = ("gdpa-triton",) if shapes is DEEP_SHAPES else ()
        names = ("gdpa", "gdpa-chunked", "inductor", *triton)
        jobs += jobs_of(cases, names, ("forward", "step"), pick)
    return jobs


TRAINED = {"cuda": (128, 4, 1024, 64), "cpu": (4, 2, 64, 16)}
SEEDS = 3


def models(pick: Selection) -> list[Job]:
    """Public models in training and inference, each followed by its attentions alone.

    With `train` it is the recommender in training instead.
    """
    if pick.train:
        return training(pick)
    on_gpu = pick.device == "cuda"
    ours = "gdpa" if on_gpu else "gdpa-always"
    jobs = []
    for measure in ("step", "forward"):
        for name in pick.rows or tuple(MODELS):
            for case in model_cases(name, pick):
                jobs += jobs_of([case], (ours, "inductor", "eager"), (measure,), pick)
                alone = MODELS[name].attentions(case)
                jobs += jobs_of(alone, (ours, "inductor"), (measure,), pick)
    # An attention that several models have is measured once.
    return [dataclasses.replace(job, cold=True) for job in dict.fromkeys(jobs)]


def model_cases(name: str, pick: Selection) -> list[Case]:
    dtypes = pick.dtypes or (("autocast",) if pick.device == "cuda" else ("float32",))
    pairs = itertools.product(dtypes, pick.shapes or (None,))
    return [MODELS[name].case(name, pick.device, dtype, shape) for dtype, shape in pairs]


def training(pick: Selection) -> list[Job]:
    """The recommender in training: gdpa and stock Inductor with SEEDS seeds, and eager with one.

    Stock's seeds give the spread of its losses. Eager shows a third order of rounding. On a GPU the
    largest batch of gdpa and of stock comes last.
    """
    (dtype,) = pick.dtypes or ("autocast" if pick.device == "cuda" else "float32",)
    (sizes,) = pick.shapes or (TRAINED[pick.device],)
    case = Case("recommender", "model", *sizes, dtype, pick.device)
    ours = "gdpa" if pick.device == "cuda" else "gdpa-always"
    seeds = [dataclasses.replace(case, seed=seed) for seed in range(SEEDS)]
    order = (ours, [case]), ("inductor", seeds), (ours, seeds[1:]), ("eager", [case])
    jobs = [job for name, cases in order for job in jobs_of(cases, (name,), ("train",), pick)]
    if pick.device == "cuda":
        for name in (ours, "inductor"):
            jobs += jobs_of([case], (name,), ("largest",), pick)
    return jobs


def compiling(pick: Selection) -> list[Job]:
    """The time to compile the forward and backward of one attention, by gdpa and by Inductor."""
    on_gpu = pick.device == "cuda"
    (dtype,) = pick.dtypes or ("bfloat16" if on_gpu else "float32",)
    shapes = pick.shapes or (((32, 4, 1024, 128), (32, 4, 1024, 64)) if on_gpu else CPU_SHAPES[1:2])
    cases = [
        Case(activation, variant, *shape, dtype, pick.device)
        for shape in shapes
        for variant in pick.variants or ("none", "causal", "bias")
        for activation in pick.activations or ("silu",)
    ]
    rows = pick.rows or (() if pick.variants or pick.shapes else ("hstu-padded",))
    cases += [MODELS[row].case(row, pick.device, dtype) for row in rows]
    names = pick.contenders or ("gdpa" if on_gpu else "gdpa-always", "inductor")
    # A job for each contender: each compiles in its own process.
    return [Job(case, (name,), ("step",), 0.0) for case in cases for name in names]


# (length, fill, keys). Keys are jagged if their number is 0, and else dense and short.
JAGGED_SIZES = (
    (256, 1.0, 0), (512, 0.5, 0), (1024, 0.5, 0), (1024, 1.0, 0), (2048, 0.5, 0), (1024, 1.0, 256),
    (2048, 1.0, 256),
)  # fmt: skip


def jagged(pick: Selection) -> list[Job]:
    """The padded formula over jagged sequences.

    gelu_tanh is compared with stock Inductor and Meta's kernels, and causal silu with HSTU's.
    `shapes` selects cases by their length.
    """
    batch, heads = (1152, 4) if pick.device == "cuda" else (8, 2)
    (dtype,) = pick.dtypes or ("bfloat16" if pick.device == "cuda" else "float32",)
    lengths = {shape[2] for shape in pick.shapes}

    def wanted(activation: str, variant: str) -> bool:
        allowed = (pick.activations or (activation,), pick.variants or (variant,))
        return activation in allowed[0] and variant in allowed[1]

    def cases(activation: str, variant: str) -> list[Case]:
        if not wanted(activation, variant):
            return []
        return [
            Case(activation, variant, batch, heads, n, 128, dtype, pick.device, fill=f, keys=m)
            for n, f, m in JAGGED_SIZES
            if (not lengths or n in lengths) and not (m and variant == "causal")
        ]

    measures = ("forward", "backward")
    jobs = jobs_of(cases("gelu_tanh", "none"), ("gdpa",), measures, pick)
    jobs += jobs_of(cases("gelu_tanh", "none"), ("meta",), measures, pick)
    jobs += jobs_of(cases("silu", "causal"), ("gdpa",), measures, pick)
    jobs += jobs_of(cases("silu", "causal"), ("hstu",), measures, pick)
    jobs += jobs_of(cases("silu", "none"), ("gdpa",), measures, pick)
    jobs += jobs_of(cases("gelu_tanh", "none"), ("gdpa-atomic", "meta-atomic"), measures, pick)
    if wanted("silu", "layer"):
        batch, n = (128, 2048) if pick.device == "cuda" else (8, 256)
        layer = Case("silu", "layer", batch, heads, n, 128, dtype, pick.device, fill=0.3)
        jobs += jobs_of([layer], ("gdpa", "inductor"), ("forward", "step"), pick)
    for case in ("gelu_tanh", "none"), ("silu", "causal"):
        jobs += jobs_of(cases(*case), ("inductor",), measures, pick)
    return jobs


CACHE_ROWS, CACHE_KEYS = (1, 16, 128), 4096


def serving(pick: Selection) -> list[Job]:
    """A few queries over a cache: gdpa, stock Inductor and a copy of the keys.

    In `shapes`, N is the number of queries.
    """
    on_gpu = pick.device == "cuda"
    (dtype,) = pick.dtypes or ("bfloat16" if on_gpu else "float32",)
    sizes = [(batch, 4, n, 128) for batch in ((256, 8) if on_gpu else (4,)) for n in CACHE_ROWS]
    keys = CACHE_KEYS if on_gpu else 1024
    cases = [
        Case(activation, "cache", *shape, dtype, pick.device, fill=fill, keys=keys)
        for activation in pick.activations or ("silu",)
        for shape in pick.shapes or sizes
        for fill in (0.0, 1.0, 0.5)
    ]
    names = pick.contenders or ("gdpa" if on_gpu else "gdpa-always", COPY, "inductor")
    return [job for name in names for job in jobs_of(cases, (name,), ("forward",), pick)]


SUITES: dict[str, Callable[[Selection], list[Job]]] = {
    "dense": dense,
    "grid": grid,
    "cpu": cpu,
    "wide": wide,
    "models": models,
    "compile": compiling,
    "jagged": jagged,
    "serving": serving,
}
