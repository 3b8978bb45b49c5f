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

from tests._recorder import Recorder
from tests.fuzz.draft import DECOY, FUSABLE, Program
from tests.operands import make_operands, recast, split_spec
from tests.tolerances import error_of

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


@dataclass(frozen=True)
class Results:
    """Outputs and gradients by name, and the operands as the call left them."""

    outputs: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]


def run(program: Program) -> Outcome:
    """Judge one program."""
    torch._dynamo.reset()
    with _loaded(program) as function, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorder = Recorder()
        compiled = torch.compile(function, backend=recorder, fullgraph=True)
        for number, sizes in enumerate(program.sizes):
            operands = make_operands(
                program.specs, sizes, dtype=getattr(torch, program.dtype), seed=program.seed + number
            )
            try:
                eager = results(function, program, operands)
                exact = results(function, program, recast(operands, torch.float64))
            except Exception:
                return Outcome(program, BROKEN, traceback.format_exc(limit=-2))
            try:
                fused = results(compiled, program, operands, mark=program.dynamic)
            except Exception:
                return Outcome(program, WRONG, traceback.format_exc())
            fault = difference(fused, eager, exact)
            if fault:
                return Outcome(program, WRONG, fault, matched=len(recorder.matches))
        return _verdict(program, recorder)


def _verdict(program: Program, recorder: Recorder) -> Outcome:
    """Values are right; was the graph treated as its label says?"""
    matched = max((len(graph.matches) for graph in recorder.graphs), default=0)
    if any(graph.guards_added for graph in recorder.graphs):
        return Outcome(program, WRONG, "the pass added a guard", matched=matched)
    if any(not graph.matches and not graph.untouched for graph in recorder.graphs):
        return Outcome(program, WRONG, "a graph without a match was changed", matched=matched)
    if program.label == DECOY and matched:
        return Outcome(program, FALSE_MATCH, str(recorder.matches), matched=matched)
    code = recorder.rejections[0].code.name if recorder.rejections else "no candidate"
    if program.label == FUSABLE and any(
        len(graph.matches) < program.regions for graph in recorder.graphs
    ):
        return Outcome(program, MISSED, recorder.why(), code, matched)
    return Outcome(program, RIGHT, "" if matched else recorder.why(), "" if matched else code, matched)


def results(
    function: Callable, program: Program, operands: Mapping[str, object], *, mark: bool = False
) -> Results:
    """Call on fresh copies of the operands; gradients of a fixed random weighting of the outputs."""
    dtypes = [x.dtype for x in operands.values() if getattr(x, "is_floating_point", bool)()]
    fresh = recast(operands, dtypes[0])
    if mark:
        _mark_dynamic(program.specs, fresh)
    torch.manual_seed(program.seed)
    with contextlib.nullcontext() if program.training else torch.no_grad():
        returned = function(**fresh)
    returned = returned if isinstance(returned, tuple) else (returned,)
    outputs = {f"output {i}": value.detach().clone() for i, value in enumerate(returned)}
    if not program.training:
        # What the call did to its arguments is part of what it means.
        left = {f"{name} afterwards": x for name, x in fresh.items() if isinstance(x, torch.Tensor)}
        return Results({**outputs, **left}, {})
    leaves = {name: x for name, x in fresh.items() if getattr(x, "requires_grad", False)}
    asked = [value for value in returned if value.requires_grad]
    if not asked:
        return Results(outputs, {})
    weights = [_weighting(value, i) for i, value in enumerate(asked)]
    found = torch.autograd.grad(asked, list(leaves.values()), weights, allow_unused=True)
    return Results(
        outputs,
        {
            f"gradient of {name}": torch.zeros_like(leaf) if grad is None else grad
            for (name, leaf), grad in zip(leaves.items(), found)
        },
    )


def _weighting(value: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    # The same cotangent in every precision.
    return drawn.to(torch.bfloat16).to(value.dtype)


def difference(fused: Results, eager: Results, exact: Results) -> str:
    """The first breach of the error rule, or ""."""
    for direction, kind in (("forward", "outputs"), ("backward", "gradients")):
        mine, theirs, truth = (getattr(side, kind) for side in (fused, eager, exact))
        if mine.keys() != theirs.keys():
            return f"{kind}: {sorted(mine)} where eager has {sorted(theirs)}"
        for name in theirs:
            fault = error_of(mine[name], theirs[name], truth[name], direction=direction)
            if fault:
                return f"{name}: {fault}"
    return ""


def _mark_dynamic(specs: Mapping[str, str], operands: Mapping[str, object]) -> None:
    """Say which dims vary: those whose spec holds the letter b, n or m."""
    for name, value in operands.items():
        if isinstance(value, torch.Tensor):
            for axis, dim in enumerate(split_spec(specs[name])[1]):
                if set(dim) & set("bnm"):
                    torch._dynamo.maybe_mark_dynamic(value, axis)


@contextlib.contextmanager
def _loaded(program: Program) -> Iterator[Callable]:
    """The program as a function with a file of its own, as Dynamo and the locations want it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"program_{program.seed}.py"
        path.write_text(program.source)
        scope: dict[str, object] = {"__name__": f"program_{program.seed}", "__file__": str(path)}
        exec(compile(program.source, str(path), "exec"), scope)
        yield scope["program"]
        linecache.checkcache(str(path))
