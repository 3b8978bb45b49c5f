"""Programs on which a matcher without one of its checks goes wrong, and what eager makes of them.

Three sources, each as `Subject`s that a run can enter again and again:

    tests     what the tests of the patterns compile: their `torch.compile` is taken down, not run
    hunts     every program of tests/adversary/hunts
    drawn     seeds of tests/adversary that are labelled a hazard
    own       those of `programs`, `jagged_programs` and `turning_programs`, for checks that none
              of the others needs
"""

import contextlib
import copy
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.adversary import judging
from tests.adversary.generator import generate
from tests.adversary.program import FLOATING, Program, make_operands
from tests.adversary.runner import has_fbgemm, settings

Seen = dict[str, object]
_PATTERNS = Path(__file__).parents[1] / "patterns"
# Hunts and tests print figures of their own; here a result is within a few roundings of the
# narrowest dtype among operands and results.
_RELATIVE = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}


@dataclass
class Subject:
    """A program. observe: runs it, by the function that stands for it, on fresh operands.

    function: what Dynamo is to capture. differs: the first difference of two observations, or "".
    """

    name: str
    function: Callable
    observe: Callable[[Callable], Seen]
    differs: Callable[[Seen, Seen], str]
    entered: Callable[[], Any]
    dynamic: bool | None = False


# Programs that are functions of given operands


@dataclass
class _Invocation:
    """A function, its operands as a test made them, and how it is called."""

    function: Callable
    args: tuple
    kwargs: dict[str, Any]
    training: bool = True
    between: Callable | None = None

    def observe(self, function: Callable) -> Seen:
        """Outputs, operands and parameters afterwards, and gradients: None differs from zeros."""
        args, kwargs = copy.deepcopy((self.args, self.kwargs))
        torch.manual_seed(1)
        seen: Seen = {}
        with torch.set_grad_enabled(self.training), _restored(self.function) as state:
            returned = function(*args, **kwargs)
            outputs = [x for x in pytree.tree_leaves(returned) if torch.is_tensor(x)]
            seen |= {f"output {i}": _plain(x) for i, x in enumerate(outputs)}
            seen |= {f"output {i} asks": x.requires_grad for i, x in enumerate(outputs)}
            if self.between is not None:
                self.between(*args, **kwargs)
            differentiable = [_values(x) for x in outputs if x.requires_grad]
            if differentiable:
                torch.autograd.backward(differentiable, [_weighting(x) for x in differentiable])
            operands = [x for x in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(x)]
            for i, x in enumerate((*operands, *state)):
                seen[f"operand {i} afterwards"] = _plain(x)
                if x.is_leaf:
                    seen[f"gradient of {i}"] = None if x.grad is None else _plain(x.grad)
        return seen


def _values(x: torch.Tensor) -> torch.Tensor:
    return x.values() if x.is_nested else x


def _plain(x: torch.Tensor) -> torch.Tensor:
    return _values(x).detach().clone()


def _weighting(x: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1, x.numel()).view(x.shape).to(x.dtype)


@contextlib.contextmanager
def _restored(function: Callable) -> Iterator[list[torch.Tensor]]:
    """A module's parameters and buffers, put back afterwards."""
    state: list[torch.Tensor] = []
    if isinstance(function, torch.nn.Module):
        state = [*function.parameters(), *function.buffers()]
    before = [x.detach().clone() for x in state]
    for x in state:
        x.grad = None
    try:
        yield state
    finally:
        with torch.no_grad():
            for x, old in zip(state, before):
                x.data = old


def unlike(mine: Seen, eager: Seen) -> str:
    """The first thing in which two observations differ, by more than rounding."""
    if mine.keys() != eager.keys():
        return f"{sorted(mine)} where eager has {sorted(eager)}"
    tensors = [x for x in eager.values() if isinstance(x, torch.Tensor)]
    relative = max((_RELATIVE.get(x.dtype, 0.0) for x in tensors), default=0.0)
    for name, theirs in eager.items():
        fault = judging._gross(name, mine[name], theirs)
        if fault == "?":
            fault = _apart(mine[name], theirs, relative)
        if fault:
            return f"{name}: {fault}"
    return ""


def _apart(mine: torch.Tensor, eager: torch.Tensor, relative: float) -> str:
    finite = eager.isfinite()
    if not torch.equal(mine.isfinite(), finite):
        return "NaN or infinity in other places than eager"
    apart = (mine - eager)[finite].abs()
    bound = relative * eager[finite].abs().amax() if finite.any() else 0.0
    return "" if bool((apart <= bound).all()) else f"off by {apart.amax().item():.3g}"


@contextlib.contextmanager
def _clean() -> Iterator[None]:
    torch._dynamo.reset()
    all_captured = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with torch._dynamo.config.patch(all_captured), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


def make_subject(name: str, function: Callable, args: tuple, **how: Any) -> Subject:
    dynamic, kwargs = how.pop("dynamic", False), how.pop("kwargs", {})
    invocation = _Invocation(function, args, kwargs, **how)
    return Subject(name, function, invocation.observe, unlike, _clean, dynamic)


# Sources


def from_hunts() -> list[Subject]:
    from tests.adversary.hunts import cases

    subjects = []
    for case in cases():
        torch.manual_seed(0)
        how = {"args": case.make_arguments(), "between": case.before_backward}
        subjects.append(make_subject(case.name, case.function, **how))
    return subjects


def from_programs() -> list[Subject]:
    from tests.judge import jagged_programs, turning_programs  # noqa: F401 (register programs)
    from tests.judge.programs import PROGRAMS

    subjects = []
    for name, (function, make, how) in PROGRAMS.items():
        torch.manual_seed(0)
        subjects.append(make_subject(f"own: {name}", function, tuple(make()), **how))
    return subjects


def from_seeds(count: int) -> list[Subject]:
    """The first seeds of the adversary whose programs are hazards and are entered by a call."""
    subjects: list[Subject] = []
    seed = 0
    while len(subjects) < count:
        program = generate(seed)
        seed += 1
        if not has_fbgemm() and "import fbgemm_gpu" in program.source:
            continue
        if program.label == "hazard" and program.door != "export" and not program.varies:
            subjects.append(drawn(program))
    return subjects


def drawn(program: Program) -> Subject:
    """A program of the adversary."""
    entry = judging.enter(program)
    dtype = FLOATING[program.dtype]

    def observe(function: Callable) -> Seen:
        operands = make_operands(program, dtype)
        return judging.observe(program, function, operands, entry.module)

    differs = lambda mine, eager: judging.difference(program, mine, eager)
    name = f"seed {program.seed}"
    return Subject(name, entry.function, observe, differs, lambda: settings(program))


# What the tests of the patterns compile


class _Compiled(Exception):
    """A test got as far as a compiled call."""


@dataclass
class _Harvest:
    """A plugin of pytest: every first compiled call of a test becomes a subject."""

    part: slice
    subjects: list[Subject] = field(default_factory=list)
    test: str = ""
    between: Callable | None = None

    def pytest_runtest_setup(self, item: Any) -> None:
        self.test, self.between = f"{Path(item.fspath).stem}: {item.name}", None

    def pytest_collection_modifyitems(self, items: list) -> None:
        items[:] = [x for x in items if _wanted(Path(x.fspath).stem, x.name)][self.part]

    def compile(self, function: Callable | None = None, **options: Any) -> Callable:
        def called(*args: Any, **kwargs: Any) -> None:
            how = {"training": torch.is_grad_enabled(), "between": self.between}
            how |= {"dynamic": options.get("dynamic"), "kwargs": copy.deepcopy(kwargs)}
            self.subjects.append(make_subject(self.test, function, copy.deepcopy(args), **how))
            raise _Compiled

        return called


def _wanted(module: str, test: str) -> bool:
    """Rows of the jagged table in one mode."""
    return module != "test_jagged" or "static" in test or "[" not in test


_HARVESTED = (
    "effects effects_table precision exact region loops hazards mutations gradients unpadding "
    "jagged modes nested matcher_unit tables"
).split()


def from_tests(part: slice) -> list[Subject]:
    """What a part of the tests of tests/patterns compiles."""
    import pytest

    from tests.patterns import effects

    harvest = _Harvest(part)
    compile_before, run = torch.compile, effects.run

    def noted(function: Callable, operands: Any, training: bool = True, between: Any = None) -> Any:
        harvest.between = between
        more = {} if between is None else {"between": between}
        return run(function, operands, training, **more)

    torch.compile, effects.run = harvest.compile, noted
    try:
        paths = [str(_PATTERNS / f"test_{name}.py") for name in _HARVESTED]
        how = ["-qq", "--tb=no", "--no-summary", "-p", "no:cacheprovider", "-m", "not slow"]
        with contextlib.redirect_stdout(io.StringIO()):
            pytest.main([*how, *paths], plugins=[harvest])
    finally:
        torch.compile, effects.run = compile_before, run
    return _distinct(harvest.subjects)


def _distinct(subjects: list[Subject]) -> list[Subject]:
    """One subject of each test."""
    return list({subject.name: subject for subject in reversed(subjects)}.values())[::-1]
