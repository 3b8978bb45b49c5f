"""Mutation: does the emulator notice when an instruction that matters is changed?

    python -m tests.emulator.mutate [subject ...] [--kinds wait,phase,...] [--report FILE]

Runs every mutant (mutants.py) of the kernels of a subject on the schedules in turn, until the
emulator raises or the output differs by a bit. Prints how many of each kind were caught, and every
survivor with its reason: a wait that never blocked on any schedule at these shapes is told apart
from one that did. Exits with 1 if the shares of issue and docs are not reached.
"""

import argparse
import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import EmulatorError, recording, runner
from .machine import SCHEDULES
from .mutants import Mutant, Mutants

Call = Callable[[Sequence[str]], list[torch.Tensor]]
# The share of each kind that must be caught; waits count where they block on some schedule.
SHARES = {"mask": 1.0, "bytes": 1.0, "fence": 1.0, "phase": 0.95, "wait": 1.0}
PATIENCE = 3  # times what all schedules of the unchanged kernel take, and a second


@dataclass(frozen=True)
class Subject:
    """calls: each runs the same kernel on these schedules and gives its outputs; a mutant is tried
    on one after the other. tails: more, for masks: that of one column, moved by one, shows at one
    length only. redundant: for a kind how many of its mutants may survive, and why they do no
    harm."""

    calls: tuple[Call, ...]
    tails: tuple[Call, ...] = ()
    redundant: dict[str, tuple[int, str]] = field(default_factory=dict)


@dataclass
class Outcome:
    redundant: dict[str, tuple[int, str]] = field(default_factory=dict)
    caught: dict[Mutant, str] = field(default_factory=dict)
    survived: dict[Mutant, str] = field(default_factory=dict)
    seconds: float = 0.0

    def share(self, kind: str) -> tuple[int, int]:
        """(caught, made); not made: what is never reached, waits that never block or that only the
        end follows."""
        caught = sum(mutant.kind == kind for mutant in self.caught)
        left = [why for mutant, why in self.survived.items() if mutant.kind == kind]
        return caught, caught + sum(why == NO_DIFFERENCE for why in left)

    def enough(self) -> bool:
        for kind, least in SHARES.items():
            caught, total = self.share(kind)
            allowed, _ = self.redundant.get(kind, (0, ""))
            if caught < least * total and total - caught > allowed:
                return False
        return True


NEVER_BLOCKS = "never blocks on any schedule at these shapes"
NEVER_REACHED = "never reached at these shapes"
ONLY_THE_END = "only the end of its warps follows"
NO_DIFFERENCE = "changes no bit at these shapes"


@contextlib.contextmanager
def translating(mutants: Mutants) -> Iterator[Any]:
    """Kernels that `run` translates inside it are translated with their mutants."""
    kernels = runner.Kernels(mutants=mutants)
    before = dict(runner.TRANSLATED)
    runner.TRANSLATED.update({False: kernels, True: kernels})
    try:
        yield kernels
    finally:
        runner.TRANSLATED.update(before)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """TimeoutError for a mutant that runs for ever; in seconds of this process."""

    def stop(*_: object) -> None:
        raise TimeoutError("ran for too long")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def bits(tensors: list[torch.Tensor]) -> list[bytes]:
    return [t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors]


@dataclass(frozen=True)
class Trial:
    """A call of the unchanged kernel, with what it gave."""

    call: Call
    schedules: Sequence[str]
    good: list[bytes]
    patience: float

    @classmethod
    def of(cls, call: Call, schedules: Sequence[str]) -> "Trial":
        began = time.process_time()
        good = bits(call(schedules))
        return cls(call, schedules, good, 1 + PATIENCE * (time.process_time() - began))

    def fault(self) -> str:
        """How the mutant that is selected is noticed, on the first schedule that does; else ""."""
        return next(filter(None, map(self.fault_on, self.schedules)), "")

    def fault_on(self, schedule: str) -> str:
        try:
            with limited(self.patience):
                result = self.call([schedule])
        except EmulatorError as error:
            return str(error).partition("\n")[0]
        except (TimeoutError, ValueError, IndexError, NotImplementedError, OverflowError) as error:
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        return "" if bits(result) == self.good else "another result"


class Trials:
    """The trials of a subject."""

    def __init__(self, subject: Subject, schedules: Sequence[str], masks: bool) -> None:
        subject.calls[0](schedules[:1])  # compiled and translated
        self.main = [Trial.of(call, schedules) for call in subject.calls]
        self.tails = [Trial.of(call, schedules[:1]) for call in subject.tails if masks]

    def fault(self, kind: str) -> str:
        """How a mutant of this kind is noticed, at the first shape where it is; else ""."""
        if kind != "mask":
            return next(filter(None, (x.fault() for x in self.main)), "")
        for _ in self.tails:
            if result := self.tails[0].fault():
                return result
            self.tails.append(self.tails.pop(0))  # the next mutant is that of the next column
        # A mask does not depend on the schedule.
        return next(filter(None, (x.fault_on(x.schedules[0]) for x in self.main)), "")


def blocking_lines(kernels: Any) -> set[tuple[str, int]]:
    return {(t.kernel.name, line) for t in kernels.known.values() for line in t.blocked}


def examine(
    subject: Subject, *, kinds: Sequence[str] = (), schedules: Sequence[str] = SCHEDULES
) -> Outcome:
    """Runs every mutant of a subject."""
    outcome, start = Outcome(subject.redundant), time.perf_counter()
    mutants = Mutants(tuple(kinds))
    with recording(), translating(mutants) as kernels:
        trials = Trials(subject, schedules, not kinds or "mask" in kinds)
        blocking, reached = blocking_lines(kernels), set(mutants.reached)
        for mutant in list(mutants.all):
            print(f"\r{mutant.number} of {len(mutants.all)}", end="", file=sys.stderr, flush=True)
            place = mutant.kernel, mutant.line
            mutants.selected = mutant.number
            if mutant.number not in reached:
                outcome.survived[mutant] = NEVER_REACHED
            elif fault := trials.fault(mutant.kind):
                outcome.caught[mutant] = fault
            elif mutant.kind == "wait" and place not in blocking:
                outcome.survived[mutant] = NEVER_BLOCKS
            else:
                mutants.selected = mutants.ends.get(place, 0)
                last = mutant.kind == "wait" and not trials.fault(mutant.kind)
                outcome.survived[mutant] = ONLY_THE_END if last else NO_DIFFERENCE
        mutants.selected = 0
        print("\r", end="", file=sys.stderr)
    outcome.seconds = time.perf_counter() - start
    return outcome


def report(name: str, outcome: Outcome) -> str:
    counts = Counter(mutant.kind for mutant in [*outcome.caught, *outcome.survived])
    lines = [f"## {name}: {sum(counts.values())} mutants, {outcome.seconds:.0f} s", ""]
    lines += ["| kind | made | caught | never reached or blocking, or last | left |"]
    lines += ["| --- | ---: | ---: | ---: | ---: |"]
    for kind in sorted(counts):
        caught, counted = outcome.share(kind)
        numbers = counts[kind], caught, counts[kind] - counted, counted - caught
        lines.append(f"| {kind} | {' | '.join(map(str, numbers))} |")
    for kind, (most, why) in outcome.redundant.items():
        lines += ["", f"Up to {most} of {kind} may be left: {why}."]
    lines += ["", "Survivors:" if outcome.survived else "No survivors.", ""]
    lines += [f"- {mutant} — {why}" for mutant, why in outcome.survived.items()]
    return "\n".join([*lines, ""])


def main(arguments: list[str] | None = None) -> int:
    from tests.kernels.cute_subjects import SUBJECTS

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("subjects", nargs="*", help=f"of {', '.join(SUBJECTS)}; all if none")
    parser.add_argument("--kinds", default="", help="of mutants, comma-separated")
    parser.add_argument("--report", help="a file to write the report to as well")
    options = parser.parse_args(arguments)
    kinds, good = [kind for kind in options.kinds.split(",") if kind], True
    for name in options.subjects or SUBJECTS:
        outcome = examine(SUBJECTS[name], kinds=kinds)
        text = report(name, outcome)
        good &= outcome.enough()
        print(text, flush=True)
        if options.report:
            with open(options.report, "a") as file:
                print(text, file=file)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
