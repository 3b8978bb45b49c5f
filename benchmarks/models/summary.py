"""The table of `bench models`: a line for each row and measure, with its bound.

f:        The share of attention in stock Inductor's time.
a:        The speed-up of the attentions alone.
bound:    1 / (1 - f + f / a), the speed-up of a model if only its attentions change.
reached:  The speed-up as a share of the bound.
"""

from collections.abc import Sequence
from typing import Any

from ..cases import Case
from ..output import align, cell, failure, gather, number, ours_of, ratio
from . import MODELS
from .training import off_curve

Row = dict[str, Any]
HEADER = (
    "row", "measure", "sizes", "eager", "inductor", "ours", "speedup", "f", "a", "bound", "reached",
    "MiB inductor", "MiB ours", "error eager", "error inductor", "error ours", "compile inductor",
    "compile ours", "regions", "left",
)  # fmt: skip


def bound(share: float | None, alone: float | None) -> float | None:
    """The speed-up of a model if only its attentions are faster.

    share: f, the share of attention in stock's time. alone: a, the speed-up of the attentions.
    """
    return None if share is None or not alone else 1 / (1 - share + share / alone)


def summary(rows: Sequence[Row]) -> str:
    """The table of a run, or "" if there are no rows.

    Times are in milliseconds, memory in MiB, errors are relative L2 distances, and compile times
    are in seconds. left: The share of our time that kernels on tensors of scores still take.
    """
    if any(row["measure"] in ("train", "largest") for row in rows):
        return "\n".join([align(trained(rows)), *verdict(rows)])
    return align(lines(rows)) if rows else ""


def lines(rows: Sequence[Row]) -> list[list[str]]:
    """The cells of the table: HEADER, then a line for each model and measure."""
    grouped, mine = gather(rows), ours_of(rows)
    rows_of_models = [
        line(case, measure, by_name, alone(case, measure, grouped, mine), mine)
        for (case, measure), by_name in grouped.items()
        if case.variant == "model"
    ]
    return [list(HEADER), *rows_of_models]


def alone(case: Case, measure: str, grouped: Any, mine: str) -> float | None:
    """The speed-up of a model's attentions, from the sums of their times. None if one failed."""
    together = {"inductor": 0.0, mine: 0.0}
    for each in MODELS[case.activation].attentions(case):
        row_of = grouped.get((each, measure), {})
        for name in together:
            ms = (row_of.get(name) or {}).get("ms")
            if not ms:
                return None
            together[name] += ms
    return together["inductor"] / together[mine]


def line(
    case: Case, measure: str, by_name: dict[str, Row], faster: float | None, mine: str
) -> list[str]:
    eager, stock, ours = (by_name.get(name) for name in ("eager", "inductor", mine))
    share, speedup = (stock or {}).get("share"), ratio(stock, ours, "ms")
    most = bound(share, faster)
    reached = speedup / most if speedup and most else None
    sizes = f"{case.batch}x{case.heads}x{case.length}x{case.head_dim} {case.dtype}"
    figures = [number(speedup, ".2f"), number(share, ".0%"), number(faster, ".2f")]
    figures += [number(most, ".2f"), number(reached, ".0%")]
    figures += [number((row or {}).get("peak_mib"), ".1f") for row in (stock, ours)]
    figures += [number((row or {}).get("distance"), ".1e") for row in (eager, stock, ours)]
    figures += [number((row or {}).get("compile_s"), ".1f") for row in (stock, ours)]
    regions = (ours or {}).get("regions")
    figures += ["" if regions is None else f"{regions}/{MODELS[case.activation].regions}"]
    figures += [number((ours or {}).get("share"), ".0%")]
    times = [cell(row, "ms") for row in (eager, stock, ours)]
    return [case.activation, measure, sizes, *times, *figures]


def trained(rows: Sequence[Row]) -> list[list[str]]:
    """The cells of the table of training: a header, then a line for each run of the recommender.

    The largest batch was measured with the first seed. off: The distance of a loss curve from
    stock's with the same seed, over the spread of stock's curves.
    """
    lines = [
        ["contender", "seed", "ms", "tokens/s", "MiB", "largest batch", "first loss", "last loss",
         "off"]
    ]  # fmt: skip
    largest = {(row["contender"], row["case"]["seed"]): row for row in of(rows, "largest")}
    for row in of(rows, "train"):
        first, *_, last = row["losses"] or [None, None]
        key = row["contender"], row["case"]["seed"]
        off = None if key[0] == "inductor" else off_stock(rows, key[0], [key[1]])
        lines.append(
            [
                *map(str, key), cell(row, "ms"), number(row["tokens"], ".0f"),
                number(row["peak_mib"], ".1f"), batch(largest.get(key)), number(first, ".4f"),
                number(last, ".4f"), number(off, ".2f"),
            ]
        )  # fmt: skip
    return lines


def of(rows: Sequence[Row], measure: str) -> list[Row]:
    return [row for row in rows if row["measure"] == measure]


def batch(row: Row | None) -> str:
    """The cell of the largest batch that fits."""
    if row is None:
        return ""
    return failure(row) if row["error"] else number(row["largest_batch"], "d") or "none"


def off_stock(rows: Sequence[Row], name: str, seeds: Sequence[int] = ()) -> float | None:
    """The distance of a contender's loss curves from stock's (`off_curve`).

    It is None if no seed is common to both, or if stock has fewer than two curves.

    seeds: The seeds of the curves; by default all that both have.
    """

    def curves(name: str) -> dict[int, list[float]]:
        trained_rows = (row for row in rows if row["contender"] == name and row["losses"])
        return {row["case"]["seed"]: row["losses"] for row in trained_rows}

    mine, stock = curves(name), curves("inductor")
    both = [seed for seed in mine if seed in stock and (not seeds or seed in seeds)]
    if not both or len(stock) < 2:
        return None
    ordered = [*both, *(seed for seed in stock if seed not in both)]
    return off_curve([mine[seed] for seed in both], [stock[seed] for seed in ordered])


def verdict(rows: Sequence[Row]) -> list[str]:
    """A line that says whether the mean of our curves is within the spread of stock's seeds."""
    distance = off_stock(rows, ours_of(rows))
    if distance is None:
        return []
    where = "within" if distance <= 1 else "outside"
    return [f"our mean curve is {where} the spread of stock's seeds: {distance:.2f} of it"]
