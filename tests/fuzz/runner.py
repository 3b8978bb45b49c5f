"""Runs one program eagerly and rewritten, forward and backward, and says what came of it.

Outcome.kind   right        rewritten, or rightly left alone, and equal to eager
               missed       a fusable program that was not rewritten (`code` says why)
               wrong        other values, other gradients, a crash, a guard added, or a graph
                            changed without a match
               false match  a decoy was rewritten
               broken       eager itself fails: a fault of the generator
"""

import contextlib
import linecache
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tests._judge import Results, difference, mark_dynamic, noise_of, results
from tests._recorder import Recorder
from tests.fuzz.draft import DECOY, FUSABLE, Program
from tests.fuzz.grammar import generate
from tests.fuzz.jagged import generate_jagged
from tests.jagged import jagged_operands
from tests.operands import make_operands, recast

RIGHT, MISSED, WRONG, FALSE_MATCH, BROKEN = "right", "missed", "wrong", "false match", "broken"


@dataclass(frozen=True)
class Outcome:
    """What came of one program. `matched`: how many regions were rewritten."""

    program: Program
    kind: str
    detail: str = ""
    code: str = ""
    matched: int = 0

    @property
    def failed(self) -> bool:
        return self.kind in (WRONG, FALSE_MATCH, BROKEN)


def start_worker() -> None:
    """What a process that runs many programs does first."""
    torch.set_num_threads(1)
    # Dynamo times its guards after a flush of the caches: a fifth of the time of a small program.
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0


def run_seed(seed: int) -> Outcome:
    """Judge the program of one seed."""
    return run(generate(seed))


def run_jagged(seed: int) -> Outcome:
    """Judge the jagged program of one seed."""
    return run(generate_jagged(seed))


def run(program: Program) -> Outcome:
    """Judge one program."""
    torch._dynamo.reset()
    with loaded(program) as function, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorder = Recorder()
        compiled = torch.compile(function, backend=recorder, fullgraph=True)
        for number in range(len(program.sizes)):
            kind, detail = _judged_call(program, number, function, compiled)
            if kind:
                return Outcome(program, kind, detail, matched=len(recorder.matches))
        return _verdict(program, recorder)


def _judged_call(
    program: Program, number: int, function: Callable, compiled: Callable
) -> tuple[str, str]:
    """Call with the sizes `number`: (kind of fault, what it is), ("", "") when there is none."""
    operands, dtype = operands_of(program, number), getattr(torch, program.dtype)
    judge = {"training": program.training, "seed": program.seed}
    try:
        eager = results(function, recast(operands, dtype), **judge)
        exact = results(function, recast(operands, torch.float64), **judge)
    except Exception:
        return BROKEN, traceback.format_exc(limit=-2)
    fresh = recast(operands, dtype)
    if program.dynamic and not program.lengths:
        mark_dynamic(program.specs, fresh)
    try:
        fused = results(compiled, fresh, **judge)
    except Exception:
        return WRONG, traceback.format_exc()
    fault = fault_of(program, function, operands, (fused, eager, exact))
    return (WRONG, fault) if fault else ("", "")


def fault_of(
    program: Program,
    function: Callable,
    operands: Mapping[str, object],
    three: tuple[Results, Results, Results],
) -> str:
    """How the program breaks the error rule, or "". three: fused, eager and exact."""
    dtype = getattr(torch, program.dtype)
    fault = difference(*three, gradient_relative=program.gradient_relative)
    if fault and dtype != torch.float64:
        eps = torch.finfo(torch.bfloat16 if "wrap:autocast" in program.features else dtype).eps
        judge = {"training": program.training, "seed": program.seed}
        noise = noise_of(function, operands, three[-1], eps, **judge)
        fault = difference(*three, noise=noise)
    return fault


def operands_of(program: Program, number: int) -> dict[str, object]:
    """The operands of call `number`."""
    dtype = getattr(torch, program.dtype)
    # Its own seed alone: a program is the same in a test and on the command line.
    generator = torch.Generator().manual_seed(program.seed + number)
    if program.lengths:
        return jagged_operands(
            program.specs, program.lengths[number], program.sizes[number], dtype=dtype,
            generator=generator, offsets=getattr(torch, program.offsets),
        )  # fmt: skip
    return make_operands(program.specs, program.sizes[number], dtype=dtype, generator=generator)


def _verdict(program: Program, recorder: Recorder) -> Outcome:
    """Values are right; was the graph treated as its label says?"""
    matched = max((len(graph.matches) for graph in recorder.graphs), default=0)
    if any(graph.guards_added for graph in recorder.graphs):
        return Outcome(program, WRONG, "the pass added a guard", matched=matched)
    if any(not graph.matches and not graph.untouched for graph in recorder.graphs):
        return Outcome(program, WRONG, "a graph without a match was changed", matched=matched)
    if program.lengths:
        return _jagged_verdict(program, recorder, matched)
    if program.label == DECOY and matched:
        return Outcome(program, FALSE_MATCH, str(recorder.matches), matched=matched)
    code = recorder.rejections[0].code.name if recorder.rejections else "no candidate"
    if program.label == FUSABLE and any(
        len(graph.matches) < program.regions for graph in recorder.graphs
    ):
        return Outcome(program, MISSED, recorder.why(), code, matched)
    return Outcome(
        program, RIGHT, "" if matched else recorder.why(), "" if matched else code, matched
    )


def _jagged_verdict(program: Program, recorder: Recorder, matched: int) -> Outcome:
    """Did every graph run on the values alone on the sides that it can, and on no other?"""
    for graph in recorder.graphs:
        problems = [match.problem for match in graph.matches]
        rewritten = {"q" * p.jagged_query + "k" * p.jagged_key for p in problems} or {"none"}
        said = "\n".join(str(note) for match in graph.matches for note in match.notes)
        if any(set(sides) - set(program.sides) for sides in rewritten - {"none"}):
            return Outcome(
                program, FALSE_MATCH, f"{rewritten}, not {program.sides}", matched=matched
            )
        if rewritten != {program.sides} and program.label == FUSABLE:
            notes = [note for match in graph.matches for note in match.notes]
            code = (notes or list(graph.rejections) or [None])[0]
            name = "no candidate" if code is None else code.code.name
            return Outcome(program, MISSED, said or recorder.why(), name, matched)
    return Outcome(program, RIGHT, matched=matched)


@contextlib.contextmanager
def loaded(program: Program) -> Iterator[Callable]:
    """The program as a function with a file of its own, as Dynamo and the locations want it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"program_{program.seed}.py"
        path.write_text(program.source)
        scope: dict[str, object] = {"__name__": f"program_{program.seed}", "__file__": str(path)}
        exec(compile(program.source, str(path), "exec"), scope)
        yield scope["program"]
        linecache.checkcache(str(path))
