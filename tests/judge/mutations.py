"""The judge without each of the matcher's checks: does it let a wrong rewrite through?

    python -m tests.judge.mutations --part 0/16 --out 0.jsonl     run, and go on where it was
    python -m tests.judge.mutations --table *.jsonl                docs/judge_mutations.md

Each program is captured once. It is rewritten as it is, then without each check that matters to it:
once with the judge off, once with it on. A rewrite that differs runs eagerly and is compared with
eager: outputs, operands afterwards and gradients.
"""

import argparse
import contextlib
import json
import logging
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

import torch

from gdpa_inductor.options import Options
from tests._recorder import text_of
from tests.adversary.capture import Form, rewritten
from tests.judge import corpus
from tests.judge.checks import CHECKS, Check
from tests.judge.corpus import Subject

OFF, ON = Options(profit=False, judge=False), Options(profit=False, judge=True)
BASE = "matcher"
DOCS = Path(__file__).parents[2] / "docs" / "judge_mutations.md"


@dataclass
class Outcome:
    """One program. status: "right", or why it says nothing ("eager" raises, the
    "matcher" as it is differs, "unexamined").

    changed: checks without which the rewrite is another one; wrong: those without which it is
    wrong, with the difference; through: those of them that the judge lets through; stopped: what
    the judge says of the others.
    """

    name: str
    status: str = "right"
    fault: str = ""
    changed: list[str] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)
    through: dict[str, str] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class Mutants:
    """A Dynamo backend that keeps every form of every graph: (check, judge) -> form."""

    checks: Iterable[Check]
    current: tuple[str, bool] = (BASE, False)
    as_drawn: bool = False  # run the graph before the rewrite, with the masks of fused dropouts
    forms: dict[tuple[str, bool], list[Form]] = field(default_factory=dict)

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
        base = rewritten(gm, OFF)
        own_forms = {(BASE, False): base}
        touched = set[str]()
        if base.matches or base.rejections:
            touched = self._touched(gm)
        for check in self.checks:
            if check.label in touched:
                own_forms |= _forms(gm, check, base)
        for key, form in own_forms.items():
            self.forms.setdefault(key, []).append(form)

        def run(*arguments: object) -> object:
            form = own_forms.get(self.current, base)
            if form.crash is not None:
                raise form.crash
            return (form.as_drawn if self.as_drawn and form.as_drawn else form.gm)(*arguments)

        return run

    def _touched(self, gm: torch.fx.GraphModule) -> set[str]:
        """The checks that decide something about a graph, or may."""
        text = text_of(gm)
        labels = {check.label for check in self.checks if check.is_data and check.concerns(text)}
        with contextlib.ExitStack() as stack:
            for check in self.checks:
                if not check.is_data:
                    note = lambda label=check.label: labels.add(label)
                    stack.enter_context(check.probed(note))
            rewritten(gm, OFF)
        return labels


def _forms(gm: torch.fx.GraphModule, check: Check, base: Form) -> dict[tuple[str, bool], Form]:
    """The rewrites without a check, with the judge off and on, where they differ."""
    with check.removed():
        off = rewritten(gm, OFF)
        if off.crash is None and off.after == base.after and not check.runs:
            return {}
        return {(check.label, False): off, (check.label, True): rewritten(gm, ON)}


def examine(subject: Subject, checks: Iterable[Check] = CHECKS) -> Outcome:
    """One program without every check."""
    outcome, start = Outcome(subject.name), time.time()
    with subject.entered():
        try:
            eager = subject.observe(subject.function)
        except Exception as error:
            outcome.status, outcome.fault = "eager", _summary(error)
            return outcome
        mutants = Mutants(list(checks))
        torch.set_grad_enabled(True)
        compiled = torch.compile(subject.function, backend=mutants, dynamic=subject.dynamic)
        outcome.fault = _fault(subject, compiled, eager)
        if outcome.fault:
            outcome.status = "matcher"
        else:
            _examine(subject, compiled, mutants, eager, outcome)
    outcome.seconds = round(time.time() - start, 2)
    return outcome


def _examine(
    subject: Subject, compiled: Callable, mutants: Mutants, eager: dict, outcome: Outcome
) -> None:
    known = {check.label: check for check in mutants.checks}
    for label in dict.fromkeys(label for label, _ in mutants.forms if label != BASE):
        outcome.changed.append(label)
        for judged, faults in ((False, outcome.wrong), (True, outcome.through)):
            mutants.current = (label, judged)
            with known[label].removed():
                mutants.as_drawn = any(x.as_drawn for x in mutants.forms[label, judged])
                expected = subject.observe(compiled) if mutants.as_drawn else eager
                mutants.as_drawn = False
                fault = _fault(subject, compiled, expected)
            if not fault:
                break
            faults[label] = fault
        if label in outcome.wrong and label not in outcome.through:
            outcome.stopped[label] = _objection(mutants.forms[label, True])


def _fault(subject: Subject, function: Callable, eager: dict) -> str:
    try:
        return subject.differs(subject.observe(function), eager)
    except Exception as error:
        return f"raises {_summary(error)}"
    finally:
        torch.set_grad_enabled(True)


def _objection(forms: list[Form]) -> str:
    rejections = [r for form in forms for r in form.rejections]
    own = [r for r in rejections if r.code.name in ("INVALID_REWRITE", "ANALYSIS")]
    return f"{own[-1].code.name}: {own[-1].reason}" if own else "not rewritten"


def _summary(error: BaseException) -> str:
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0][:200]}"


# Many


def subjects(seeds: int, part: slice) -> Iterator[Subject]:
    """A part of the corpus."""
    yield from [*corpus.from_programs(), *corpus.from_hunts()][part]
    yield from corpus.from_tests(part)
    yield from corpus.from_seeds(seeds)[part]


def run(programs: Iterable[Subject], path: Path) -> None:
    known = {outcome.name for outcome in read([path])}
    with path.open("a") as sink:
        for subject in programs:
            if subject.name in known:
                continue
            try:
                outcome = examine(subject)
            except Exception as error:
                outcome = Outcome(subject.name, "unexamined", _summary(error))
            sink.write(json.dumps(asdict(outcome)) + "\n")
            sink.flush()
            for label, fault in outcome.through.items():
                print(f"THROUGH {outcome.name} without {label}: {fault}", flush=True)


def read(paths: Iterable[Path]) -> Iterator[Outcome]:
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            yield Outcome(**json.loads(line))


_HEAD = """# The judge without the matcher's checks

The judge must not rely on the matcher. So each safety check of the matcher is removed in turn, all
others left in place. The rewrites of a corpus are run with the judge off and on. The corpus has
{count} programs out of the tests of the patterns, the hunts, and seeds of the adversary that are
labelled a hazard. {left} others say nothing: eager raises, or the captured graph differs from eager
before a check is removed (hooks, dropout, sparse gradients). A program is wrong where the rewritten
graph, run eagerly, differs from eager in an output, an operand afterwards or a gradient, or raises.

`python -m tests.judge.mutations` runs the corpus, and writes this page with `--table`. This is the
run of {date}, torch {torch}, on a CPU ({machine}).

- **Rewritten otherwise**: programs that the matcher rewrites in another way without the check.
- **Wrong**: those of them that then differ from eager.
- **Not told**: wrong ones that the judge stopped with `ANALYSIS`; it could not tell. The others are
  `INVALID_REWRITE`.
- **Let through**: wrong ones that the judge let pass.

| check | where | rewritten otherwise | wrong | not told | let through |
| --- | --- | ---: | ---: | ---: | ---: |
"""
_TAIL = """
A check with 0 in the first column was not exercised by these programs: nothing is known of it. One
with 0 in the second has another check behind it, or its removal changes roundings and copies only.
"""


def table(outcomes: list[Outcome]) -> str:
    right = [outcome for outcome in outcomes if outcome.status == "right"]
    broken = [o.name for o in outcomes if o.status == "unexamined" or "Mutants" in o.fault]
    assert not broken, f"not examined: {broken}"
    lines = []
    for check in CHECKS:
        changed, wrong, through = (
            sum(check.label in getattr(o, what) for o in right)
            for what in ("changed", "wrong", "through")
        )
        untold = sum(o.stopped.get(check.label, "").startswith("ANALYSIS") for o in right)
        numbers = f"{changed} | {wrong} | {untold} | {through}"
        lines.append(f"| {check.says} | `{check.label}` | {numbers} |")
    head = _HEAD.format(
        count=len(right),
        left=len(outcomes) - len(right),
        date=date.today(),
        torch=torch.__version__,
        machine=platform.machine(),
    )
    return head + "\n".join(lines) + "\n" + _TAIL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", nargs="+", type=Path, help="write the page from these results")
    parser.add_argument("--part", default="0/1", help="1/16: the second of 16 parts of the corpus")
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("mutations.jsonl"))
    parser.add_argument("--only", default="", help="programs whose name holds this")
    options = parser.parse_args()
    if options.table:
        DOCS.write_text(table(list(read(options.table))))
        return
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)  # the log of a rewrite that is held back
    first, parts = map(int, options.part.split("/"))
    programs = subjects(options.seeds, slice(first, None, parts))
    run((subject for subject in programs if options.only in subject.name), options.out)


if __name__ == "__main__":
    main()
