"""The tables of docs/benchmarks.md: a question each, and how its rows and columns are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from examples.movielens.__main__ import parse_arguments

from .cells import (
    CEILING,
    CHARTED,
    OURS,
    WORDS,
    Row,
    Run,
    cached,
    ceiling,
    compared,
    demonstrated,
    first_calls,
    grid,
    length,
    modelled,
    recommender,
)  # fmt: skip
from .svg import Panel


@dataclass(frozen=True)
class Table:
    """name: of the chart. file: of the run. cells: header and lines of the table."""

    name: str
    file: str
    question: str
    words: str
    cells: Callable[[Run], list[list[str]]]
    panels: Callable[[Run], list[Panel]] | None = field(default=None)

    def about(self, run: Run) -> str:
        """The words, without a ratio that the run has not."""
        alone = all(row["contender"] in OURS for row in run.rows)
        return self.words.replace(PAIR, "Columns are TFLOP/s.") if alone else self.words

    def markdown(self, run: Run) -> str:
        header, *lines = self.cells(run)
        rule = ["---", *["---:"] * (len(header) - 1)]
        return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))


def ceiling_panels(measure: str) -> Callable[[Run], list[Panel]]:
    def panels(run: Run) -> list[Panel]:
        tflops = {(length(row), row["contender"]): row["tflops"] for row in run.rows}
        values: dict[str, dict[str, float | None]] = {
            str(n): {CEILING[name]: tflops.get((n, name)) for name in CHARTED}
            for n in sorted({length(row) for row in run.rows if row["measure"] == measure})
        }
        return [Panel(f"{measure}, TFLOP/s (more is better)", "length N", values)]

    return panels


def bars(
    rows: Sequence[Row], measure: str, unit: str, label: Callable[[Row], str]
) -> dict[str, dict[str, float | None]]:
    """The values of a panel: groups by label, a bar per contender."""
    groups: dict[str, dict[str, float | None]] = {}
    for row in rows:
        if row["measure"] == measure:
            groups.setdefault(label(row), {})[WORDS[row["contender"]].strip("`")] = row[unit]
    return groups


def speed_panels(*measures: str, activation: str = "silu") -> Callable[[Run], list[Panel]]:
    """One panel a measure, of one activation."""

    def panels(run: Run) -> list[Panel]:
        rows = [row for row in run.rows if row["case"]["activation"] == activation]
        rows = [row for row in rows if row["case"]["variant"] != "scores"]
        short = lambda row: str(length(row)) + (" half" if row["case"]["fill"] == 0.5 else "")
        rows = [row for row in rows if not row["case"]["keys"]]
        return [
            Panel(f"{measure}, TFLOP/s (more is better)", "length N",
                  bars(rows, measure, "tflops", short))
            for measure in measures
        ]  # fmt: skip

    return panels


def figures(rows: Sequence[Row]) -> str:
    """One length of the chart in words, for who does not see it."""
    lengths = sorted({length(row) for row in rows})
    shown = lengths[len(lengths) // 2]
    steps = {r["contender"]: r for r in rows if r["measure"] == "step" and length(r) == shown}
    ours, stock = steps["gdpa"], steps["inductor"]
    return (
        f"At N = {shown}, gdpa reaches {ours['tflops']:.0f} TFLOP/s with a peak of "
        f"{ours['peak_mib']:.0f} MiB, Inductor {stock['tflops']:.0f} with "
        f"{stock['peak_mib']:.0f} MiB."
    )


def readme_panels(name: str, run: Run) -> tuple[list[Panel], str]:
    """Speed and memory of a training step with silu; and what the chart shows, in words."""
    variant = {"dense": "none", "bias": "bias"}[name]
    rows = [r for r in run.rows
            if r["case"]["variant"] == variant and r["case"]["activation"] == "silu"]  # fmt: skip
    label = lambda row: str(length(row))
    case = rows[0]["case"]
    what = {"dense": "silu attention", "bias": "silu attention with a learned bias [H, N, N]"}[name]
    words = (
        f"A training step of {what}, bf16, {case['batch'] * case['length']} tokens, "
        f"{case['heads']} heads of {case['head_dim']}, against stock Inductor. Memory is the peak "
        "above the memory held before the step. " + figures(rows)
    )
    panels = [
        Panel("TFLOP/s (more is better)", "length N", bars(rows, "step", "tflops", label)),
        Panel("MiB (less is better)", "length N", bars(rows, "step", "peak_mib", label)),
    ]
    return panels, words


def whole(run: Run) -> str:
    """The recommender in words: the seed that all contenders trained with."""
    ours, stock = (trained(run, name) for name in ("gdpa", "inductor"))
    return (
        f"**A whole recommender**, 8 layers of HSTU: {stock['ms'] / ours['ms']:.1f} times as fast "
        f"as stock Inductor in training, with {ours['peak_mib']:.0f} MiB in place of "
        f"{stock['peak_mib']:,.0f}. The largest batch that fits is {ours['largest']:,} "
        f"instead of {stock['largest']:,}."
    )


def trained(run: Run, name: str) -> Row:
    """A contender's training run with the first seed, and `largest`, its largest batch or None."""
    rows = [r for r in run.rows if r["contender"] == name and r["case"]["seed"] == 0]
    largest = [r["largest_batch"] for r in rows if r["measure"] == "largest"]
    return next(r for r in rows if r["measure"] == "train") | {
        "largest": max(largest, default=None)
    }


TRAINED = (
    "In bf16 by autocast; histories are as long as MovieLens-20M's, their items synthetic. All "
    "three see the same batches and start from the same parameters."
)


def end_to_end(run: Run) -> str:
    """A column for each contender, the fastest last."""
    rows = [trained(run, name) for name in ("eager", "inductor", "gdpa")]
    cells = {
        "": ["eager", "stock Inductor", "**gdpa**"],
        "steps per second": [f"{1000 / row['ms']:.0f}" for row in rows],
        "peak memory of a step": [f"{row['peak_mib']:,.0f} MiB" for row in rows],
        "largest batch that fits": [f"{row['largest']:,}" if row["largest"] else "–"
                                    for row in rows],
        "loss, mean of the last 20 steps": [f"{mean(row['losses'][-20:]):.2f}" for row in rows],
    }  # fmt: skip
    lines = [f"| {' | '.join([name, *row])} |" for name, row in cells.items()]
    return "\n".join([lines[0], "|---|---:|---:|---:|", *lines[1:]])


def other_seeds(run: Run) -> str:
    """How far seeds alone lead, beside which the losses of the table are to be read."""
    rows = [r for r in run.rows if r["measure"] == "train" and r["contender"] == "inductor"]
    ends = [f"{mean(row['losses'][-20:]):.2f}" for row in rows if row["case"]["seed"]]
    return f"With other seeds stock Inductor's loss is {' and '.join(ends)}."


def ranked(run: Run) -> str:
    """The demo in words: memory and ranking of the contenders."""
    row_of = {row["contender"]: row for row in run.rows}
    hits = {name: f"{row['metrics']['HR@10']:.3f}" for name, row in row_of.items()}
    memory = [f"{row_of[name]['peak_mib']:.0f}" for name in ("eager", "inductor", "gdpa")]
    return (
        "The demo trains two such layers on MovieLens-100K, on any machine. After "
        f"{row_of['gdpa']['steps']} steps (`make demo` does {parse_arguments([]).steps}) eager, "
        f"stock Inductor and gdpa reach an HR@10 of {hits['eager']}, {hits['inductor']} and "
        f"{hits['gdpa']}; ranking by popularity alone has {hits['popularity alone']}. The "
        f"peak of a step on a CPU is {memory[0]}, {memory[1]} and {memory[2]} MiB."
    )


def across_models(run: Run) -> str:
    """The speed-ups of all public models in words."""
    speed = {}
    for measure in ("step", "forward"):
        speedups = [float(line[1]) for line in modelled(measure, "speedup")(run)[1:]]
        ends = f"{min(speedups):.2g} to {max(speedups):.2g}"
        speed[measure] = f"{median(speedups):.2g} times Inductor's speed in the median ({ends})"
    return (
        f"**{len(speedups)} public models**, unchanged: a training step runs at {speed['step']}, "
        f"inference at {speed['forward']}."
    )


def one_layer(run: Run) -> str:
    rows = [r for r in run.rows
            if r["case"]["variant"] == "none" and r["case"]["activation"] == "silu"]  # fmt: skip
    return f"**Attention alone**, a training step with silu in bf16. {figures(rows)}"


# What the page begins with, by the file that it is read from.
HEADLINES: dict[str, Callable[[Run], str]] = {
    "recommender": whole,
    "models": across_models,
    "dense": one_layer,
}

SPEED = ("eager", "inductor", "ours", "speedup", "f", "a", "bound", "reached", "left")
BOUND = (
    "*f* is the share of attention in Inductor's kernels, *a* the speed-up of the attention alone. "
    "*bound* is 1 / (1 − f + f / a), *reached* the speed-up over it. *left* is what *f* is in ours."
)
PAIR = "Columns are TFLOP/s, with the time over that of gdpa in brackets."

TABLES = (
    Table("dense", "dense", "Dense: how fast?",
          f"Silu and tanh-gelu, no mask, bf16, D = 128, B·N = 32768, H = 4. {PAIR}",
          compared("tflops", "forward", "step"), speed_panels("forward", "step")),
    Table("dense_memory", "dense", "Dense: how much memory does a step take?",
          "The same run. Columns are the peak of a training step in MiB, beyond its operands.",
          compared("peak_mib", "step", ratios=False)),
    Table("causal", "causal", "A causal mask that is given as a tensor",
          "The mask is a boolean tensor [N, N]; its empty tiles are left out. Masked places count "
          f"as work, for all alike. {PAIR}",
          compared("tflops", "forward", "step"), speed_panels("forward", "step")),
    Table("bias", "bias", "Learned biases: how fast?",
          "A bias [H, N, N] or [B, H, N, N] with its gradient; silu, bf16, D = 128, "
          f"B·N = 32768, H = 4. {PAIR}",
          compared("tflops", "forward", "step"), speed_panels("forward", "step")),
    Table("bias_memory", "bias", "Learned biases: how much memory does a step take?",
          "The same run. Columns are the peak of a training step in MiB, beyond its operands.",
          compared("peak_mib", "step", ratios=False)),
    Table("buckets", "buckets", "HSTU's bias by time buckets",
          "A bias [B, N, N] looked up in a learned table by the time between two tokens, as in "
          f"HSTU's research model. {PAIR}",
          compared("tflops", "forward", "step")),
    Table("jagged", "jagged", "Jagged: how fast?",
          "A formula that pads, attends and unpads; tanh-gelu, bf16, D = 128, 1152 sequences, "
          "4 heads. The rows name the greatest length; fill is the mean length over it. Scores "
          f"that exist count. {PAIR}",
          compared("tflops", "forward", "backward"),
          speed_panels("forward", "backward", activation="gelu_tanh")),
    Table("jagged_causal", "jagged_causal", "HSTU's causal attention, jagged",
          f"Causal silu divided by the greatest length. Half of the scores count. {PAIR}",
          compared("tflops", "forward", "backward")),
    Table("layer", "layer", "A layer of HSTU: how fast?",
          "Projection, norms, attention, gate; 128 sequences of up to 2048 tokens, mean 0.3 of "
          "that. Milliseconds.",
          compared("ms", "forward", "step")),
    Table("layer_memory", "layer", "A layer of HSTU: how much memory?",
          "The same run, peak MiB.", compared("peak_mib", "forward", "step", ratios=False)),
    Table("serving", "serving", "Few queries over a cache: how fast?",
          "Inference with silu, bf16, D = 128, H = 4, up to 4096 keys of each sequence. GB/s are "
          "of the keys and values, TFLOP/s of the scores that exist. The column *of a copy* has "
          "the time of a copy that moves as many bytes. A jagged cache is padded in the formula.",
          cached),
    Table("models", "models", "Public models: how fast is a training step?",
          f"Milliseconds. {BOUND}", modelled("step", *SPEED)),
    Table("models_forward", "models", "Public models: how fast is inference?",
          "The same run.", modelled("forward", *SPEED)),
    Table("models_memory", "models", "Public models: how much memory, how long to compile?",
          "The same run, a training step. MiB are its peak. Compiling is the first call with empty "
          "caches, in seconds.",
          modelled("step", "MiB inductor", "MiB ours", "compile inductor", "compile ours",
                   "regions")),
    Table("models_errors", "models", "Public models: how exact?",
          "The same run, a training step. Errors are of the worst gradient.",
          modelled("step", "error eager", "error inductor", "error ours")),
    Table("recommender", "recommender", "A whole recommender in training",
          "200 steps of 8 layers of HSTU, lengths as MovieLens-20M's; bf16 by autocast. MiB are "
          "the peak of a step. The largest batch is found by doubling. *off* is how far a loss "
          "curve is from Inductor's of the same seed, over the spread of Inductor's seeds.",
          recommender),
    Table("demo", "demo", "The demo: MovieLens-100K, to the ranking",
          "Two layers of HSTU on a CPU in fp32, 8 histories of 512 items a step. MiB are the peak "
          "of a step. HR@10 and NDCG@10 rank the held-out last item among all items not seen. Loss "
          "curves are compared step by step.",
          demonstrated),
    Table("wide", "wide", "Wide values, wide heads, fp32: how fast is inference in chunks?",
          "About 32768 tokens. Values of relu² and laplace are wider than queries and keys. "
          "Milliseconds.",
          compared("ms", "forward")),
    Table("wide_step", "wide", "Wide values, wide heads, fp32: how fast is training in chunks?",
          "The same run.", compared("ms", "step")),
    Table("wide_memory", "wide", "In chunks: how much memory does a step take?",
          "The same run, peak MiB, gradients included.",
          compared("peak_mib", "step", ratios=False)),
    Table("compile", "compile", "How long does the first call take?",
          "Forward and backward, seconds. *cold*: empty caches. *warm*: the next process.",
          first_calls),
    Table("grid", "grid", "From which size on does inference pay?",
          "Stock Inductor's time over ours, silu, no mask, about 32768 tokens, H = 4. *Left*: the "
          "cost model leaves the case to Inductor.",
          grid("forward")),
    Table("grid_step", "grid", "From which size on does training pay?",
          "The same run, a training step.", grid("step")),
    Table("ceiling_forward", "ceiling_forward", "How far is the forward from the hardware?",
          "TFLOP/s beside loops that load, multiply and store what attention does and compute "
          "nothing else, and beside softmax attention of the same size.",
          ceiling("forward"), ceiling_panels("forward")),
    Table("ceiling_backward", "ceiling_backward", "How far is the backward from the hardware?",
          "The same for the backward; five products count. Ours is deterministic.",
          ceiling("backward"), ceiling_panels("backward")),
    Table("cpu", "cpu", "On a CPU",
          "fp32, silu, two threads, with `gdpa.profit` off, so that small sizes are fused too. "
          "Milliseconds.",
          compared("ms", "forward", "step")),
)  # fmt: skip
