"""`python -m tests.fuzz --seeds N`: many programs, a table of what came of them.

    --seeds N       how many programs (default 1000)
    --start S       the first seed (default 0)
    --workers W     processes (default 2)
    --seconds T     stop after T seconds, wherever that is
    --seed S        only this one: print its source, its operands and what came of it
    --family F      dense (the default) or jagged: of which grammar
    --only LABEL    fusable, refusable or decoy: skip the others
    --show KIND     print the programs of a kind as they come: missed, wrong, "false match"

The exit status is not 0 if any program is wrong, a decoy is rewritten, or fewer than 98% of the
fusable programs are rewritten.
"""

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable

from tests.fuzz.draft import DECOY, FUSABLE, REFUSABLE, Program
from tests.fuzz.grammar import generate
from tests.fuzz.jagged import generate_jagged
from tests.fuzz.runner import (
    FALSE_MATCH,
    MISSED,
    WRONG,
    Outcome,
    run_jagged,
    run_seed,
    start_worker,
)

SHARE = 0.98
FAMILIES = {"dense": (run_seed, generate), "jagged": (run_jagged, generate_jagged)}


def main() -> int:
    arguments = _arguments()
    run, draw = FAMILIES[arguments.family]
    if arguments.seed is not None:
        outcome = run(arguments.seed)
        print(reproducer(outcome))
        return int(outcome.failed)
    started, outcomes = time.time(), []
    seeds = range(arguments.start, arguments.start + arguments.seeds)
    if arguments.only:
        seeds = [seed for seed in seeds if draw(seed).label == arguments.only]
    with multiprocessing.get_context("spawn").Pool(arguments.workers, start_worker) as pool:
        for outcome in pool.imap_unordered(run, seeds, chunksize=8):
            outcomes.append(outcome)
            if outcome.failed or outcome.kind == arguments.show:
                print(reproducer(outcome), flush=True)
            if len(outcomes) % 100 == 0:
                _progress(outcomes, len(seeds), started)
            if arguments.seconds and time.time() - started > arguments.seconds:
                break
    print(table(outcomes))
    return int(not passed(outcomes))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--family", choices=FAMILIES, default="dense")
    parser.add_argument("--only", choices=[FUSABLE, REFUSABLE, DECOY])
    parser.add_argument("--show", default="")
    return parser.parse_args()


def _progress(outcomes: list[Outcome], total: int, started: float) -> None:
    if sys.stderr.isatty() or len(outcomes) % 1000 == 0:
        rate = len(outcomes) / (time.time() - started)
        print(f"{len(outcomes)}/{total} programs, {rate:.1f}/s", file=sys.stderr, flush=True)


def reproducer(outcome: Outcome) -> str:
    """All that is needed to see it again."""
    program: Program = outcome.program
    family = (
        f"--family jagged  # {program.sides!r}, {program.lengths}\n# " if program.lengths else ""
    )
    return "\n".join(
        [
            f"# python -m tests.fuzz {family}--seed {program.seed}",
            f"# {outcome.kind} {outcome.code} ({program.label}: {', '.join(program.features)})",
            *(f"# {line}" for line in outcome.detail.splitlines()),
            f"# operands: {dict(program.specs)}",
            f"# sizes: {', '.join(str(dict(sizes)) for sizes in program.sizes)}",
            f"# dtype: {program.dtype}, training: {program.training}",
            *([f"# lengths {program.lengths}, sides {program.sides!r}"] if program.lengths else []),
            program.source,
        ]
    )


def table(outcomes: Iterable[Outcome]) -> str:
    """Counts by label, and the codes of the misses."""
    outcomes = list(outcomes)
    kinds = sorted({outcome.kind for outcome in outcomes})
    lines = [f"{'':12}{'programs':>10}{'rewritten':>11}" + "".join(f"{kind:>13}" for kind in kinds)]
    for label in (FUSABLE, REFUSABLE, DECOY):
        own = [outcome for outcome in outcomes if outcome.program.label == label]
        counts = Counter(outcome.kind for outcome in own)
        rewritten = sum(outcome.matched > 0 for outcome in own)
        cells = "".join(f"{counts[kind]:>13}" for kind in kinds)
        lines.append(f"{label:12}{len(own):>10}{rewritten:>11}{cells}")
    lines.append(f"share of the fusable rewritten: {share(outcomes):.2%}")
    for code, count in Counter(o.code for o in outcomes if o.kind == MISSED).most_common():
        lines.append(f"    missed {count:>5}  {code}")
    for kind in (WRONG, FALSE_MATCH):
        seeds = sorted(o.program.seed for o in outcomes if o.kind == kind)
        if seeds:
            lines.append(f"{kind}: seeds {', '.join(map(str, seeds))}")
    return "\n".join(lines)


def share(outcomes: Iterable[Outcome]) -> float:
    """Of the fusable programs, how many had every region rewritten."""
    fusable = [outcome for outcome in outcomes if outcome.program.label == FUSABLE]
    return sum(o.kind != MISSED for o in fusable) / max(1, len(fusable))


def passed(outcomes: Iterable[Outcome]) -> bool:
    """No program wrong, no decoy rewritten, enough of the fusable rewritten."""
    outcomes = list(outcomes)
    return not any(outcome.failed for outcome in outcomes) and share(outcomes) >= SHARE


if __name__ == "__main__":
    sys.exit(main())
