"""Many programs: each is run, judged, and becomes one line of a file that a later run resumes.

Status of a program: "right"; "wrong" (a difference to eager, or a broken promise of the pass);
"crash" (ours raised where eager and Dynamo alone do not); "eager" (eager itself raises: not
counted); "dynamo" (Dynamo alone differs from eager or raises: not counted).
"""

import concurrent.futures
import contextlib
import functools
import gc
import importlib.util
import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from .capture import PLAIN, Capture, Form, judged_options
from .generator import generate
from .judging import Entry, apart, difference, enter, largest, observe, reference
from .program import FLOATING, Program, arguments_of, make_operands

WRONG = ("wrong", "crash")
COUNTED = ("right", *WRONG)
SECONDS_PER_PROGRAM = 60
SECONDS_COMPILED = 600


@dataclass
class Outcome:
    """One line of the results file. missed: a program that has to be rewritten, and was not, or not
    on a side where it can be. forms: by form of the graph, (status, fault, matches). lowered: what
    regions were lowered to, where programs are compiled in full.
    """

    seed: int
    label: str
    hostilities: tuple[str, ...]
    family: str
    dtype: str
    spelling: str
    status: str
    fault: str = ""
    matches: int = 0
    missed: bool = False
    codes: list[str] = field(default_factory=list)
    forms: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    lowered: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def of(cls, program: Program, status: str, fault: str = "") -> "Outcome":
        p = program
        return cls(p.seed, p.label, p.hostilities, p.family, p.dtype, p.spelling, status, fault)


def run_seed(seed: int, judge: str = "both") -> Outcome:
    return run_program(generate(seed), judge)


def run_program(program: Program, judge: str = "both") -> Outcome:
    """Eager, then every form of the captured graphs."""
    start = time.time()
    outcome = Outcome.of(program, "right")
    if "import fbgemm_gpu" in program.source and not has_fbgemm():
        outcome.status, outcome.fault = "eager", "there is no fbgemm for this torch"
        return outcome
    with settings(program):
        (_export_door if program.door == "export" else _dynamo_door)(program, judge, outcome)
    outcome.seconds = round(time.time() - start, 3)
    return outcome


@functools.cache
def has_fbgemm() -> bool:
    return importlib.util.find_spec("fbgemm_gpu") is not None


@contextlib.contextmanager
def settings(program: Program) -> Iterator[None]:
    """A clean Dynamo, quiet, on one thread."""
    import torch._dynamo.guards

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # Collected once in 16 programs: Dynamo makes garbage faster than it is worth looking for.
    collects = gc.isenabled()
    gc.disable()
    # A measurement of guards at every compile, 5 % of a small program's time.
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
    torch._dynamo.reset()
    torch._dynamo.config.capture_scalar_outputs = program.capture_scalars
    try:
        yield
    finally:
        torch._dynamo.config.capture_scalar_outputs = False
        torch.set_grad_enabled(True)
        torch._dynamo.reset()
        if program.seed % 16 == 0:
            gc.collect()
        if collects:
            gc.enable()
        torch.set_num_threads(threads)


Calls = list[Callable[..., dict]]


def _calls(program: Program, module: torch.nn.Module | None) -> Calls:
    """A call for each set of sizes."""
    dtype = FLOATING[program.dtype]

    def observed(number: int, function: Callable, mark: bool = False) -> dict:
        operands = make_operands(program, dtype, number)
        for operand in program.operands if mark and not program.lengths else ():
            for axis in program.varying(operand):
                torch._dynamo.maybe_mark_dynamic(operands[operand.name], axis)
        return observe(program, function, operands, module)

    return [functools.partial(observed, number) for number in range(len(program.sizes))]


def in_eager(program: Program, outcome: Outcome) -> tuple[Entry, Calls, list[dict]] | None:
    """The program, its calls and what eager gives; None where eager raises, as the outcome says."""
    try:
        entry = enter(program)
        calls = _calls(program, entry.module)
        return entry, calls, [call(entry.function) for call in calls]
    except Exception as error:
        outcome.status, outcome.fault = "eager", said(error)
        return None
    finally:
        torch.set_grad_enabled(True)


def _dynamo_door(program: Program, judge: str, outcome: Outcome) -> None:
    if (known := in_eager(program, outcome)) is None:
        return
    entry, calls, eager = known
    capture = Capture(judged_options(judge))
    dynamic = None if program.varies else False
    compiled = torch.compile(entry.function, backend=capture, dynamic=dynamic)

    def run(name: str) -> tuple[str, str]:
        capture.current = name
        try:
            mine = [call(compiled, True) for call in calls]
            if capture.draws(name):
                capture.before = True
                expected = [call(compiled, True) for call in calls]
        except Exception as error:
            return "crash", said(error)
        finally:
            torch.set_grad_enabled(True)
            drew, capture.before = capture.before, False
        if drew:
            pairs = zip(mine, expected, strict=True)
            fault = next(filter(None, (under_masks(program, m, e) for m, e in pairs)), "")
        else:
            fault = first_difference(program, mine, eager)
        return ("wrong", fault) if fault else ("right", "")

    _judge_forms(program, capture, run, outcome)


def under_masks(program: Program, mine: dict, expected: dict) -> str:
    """The first difference of results under the same masks, or "". Eager with its own is no truth,
    so a bound by the coarsest dtype is all there is. It is wide: a wrong mask is far beyond it.
    """
    named = any(x in program.source for x in ("autocast", "bfloat16", "float16", "half"))
    coarsest = torch.bfloat16 if named or program.dtype == "bfloat16" else FLOATING[program.dtype]
    slack = torch.finfo(coarsest).eps ** 0.5
    if mine.keys() != expected.keys():
        return f"{sorted(mine)} where eager has {sorted(expected)}"
    for name, theirs in expected.items():
        ours = mine[name]
        if not torch.is_tensor(theirs) or not theirs.is_floating_point():
            continue
        if not torch.is_tensor(ours) or (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            return f"{name}: {ours!r}"
        known = theirs.isfinite() & ours.isfinite()
        if bool((apart(ours, theirs)[known] > slack * (1 + largest(theirs))).any()):
            return f"{name}: other numbers under the masks that were drawn"
    return ""


def first_difference(program: Program, mine: list[dict], eager: list[dict]) -> str:
    """Of all calls, or ""."""
    pairs = enumerate(zip(mine, eager))
    faults = (difference(program, m, e, number=number) for number, (m, e) in pairs)
    return next(filter(None, faults), "")


def _judge_forms(
    program: Program, capture: Capture, run: Callable[[str], tuple[str, str]], outcome: Outcome
) -> None:
    """Run every form that differs from those before; Dynamo alone only where one is not right."""
    plain: tuple[str, str] | None = None
    done: list[str] = []
    for name in capture.options:
        same = next((x for x in done if capture.same(x, name)), None)
        status, fault = outcome.forms[same][:2] if same else run(name)
        promise = capture.fault(name) or _false_match(program, capture, name)
        if status == "right" and promise:
            status, fault = "wrong" if "raised" not in promise else "crash", promise
        elif status != "right" and not same:
            plain = plain or run(PLAIN)
            if plain[0] != "right" and not promise:
                status, fault = "dynamo", f"Dynamo alone: {plain[1]}"
        outcome.forms[name] = (status, fault, capture.matched(name))
        done.append(name)
    _summarise(outcome)
    outcome.codes = capture.codes(done[0])
    outcome.missed = program.plain and any(
        not _is_whole(program, form) for form in capture.forms(done[0])
    )


def _sides(form: Form) -> set[str]:
    """Of each region, the sides that run on jagged values alone."""
    problems = [match.problem for match in form.matches]
    return {"q" * p.jagged_query + "k" * p.jagged_key for p in problems}


def _false_match(program: Program, capture: Capture, name: str) -> str:
    """What was rewritten and must not be, or ""."""
    if program.label == "decoy" and capture.matched(name):
        return "a decoy was rewritten"
    if program.sides is None:
        return ""
    sides = set().union(*map(_sides, capture.forms(name)))
    many = [x for x in sides if set(x) - set(program.sides)]
    return f"jagged on {many[0]}, which can be so on {program.sides!r}" if many else ""


def _is_whole(program: Program, form: Form) -> bool:
    """Whether a graph was rewritten as far as it can be."""
    whole = len(form.matches) >= program.regions
    return whole and program.sides in (None, *_sides(form))


def _summarise(outcome: Outcome) -> None:
    worst = sorted(
        outcome.forms.values(), key=lambda f: ("crash", "wrong", "dynamo", "right").index(f[0])
    )
    outcome.status, outcome.fault, _ = worst[0]
    outcome.matches = next(iter(outcome.forms.values()))[2]


def _export_door(program: Program, judge: str, outcome: Outcome) -> None:
    """torch.export, then `rewrite` of the exported program under each option."""
    from gdpa_inductor import rewrite

    if (known := in_eager(program, outcome)) is None:
        return
    entry, (call, *_), (eager, *_) = known
    operands = make_operands(program, FLOATING[program.dtype])
    try:
        exported = torch.export.export(entry.module, tuple(arguments_of(program, operands)))
        plain = difference(program, call(exported.module()), eager)
    except Exception as error:
        plain = said(error)
    if plain:
        outcome.status, outcome.fault = "dynamo", f"export alone: {plain}"
        return
    for name, options in judged_options(judge).items():
        inputs = {k: v for k, v in asdict(options).items() if v is not None}
        matches: int = 0
        try:
            built, report = rewrite(exported, **inputs)
            matches = len(report.matches)
            outcome.codes = [r.code.name for r in report.rejections]
            fault = difference(program, call(built.module()), eager)
            status = "wrong" if fault else "right"
            if "INVALID_REWRITE" in outcome.codes and not fault:
                status, fault = "wrong", "INVALID_REWRITE"
        except Exception as error:
            status, fault = "crash", said(error)
        outcome.forms[name] = (status, fault, matches)
    _summarise(outcome)


def said(error: BaseException) -> str:
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0][:300]}"


# Many.


def run_range(
    seeds: list[int], judge: str, workers: int, path: Path | None, show: Callable[[Outcome], None],
    one: Callable[[int, str], object] = run_seed, seconds: float | None = None,
) -> list[Outcome]:  # fmt: skip
    """Run the seeds that the file does not have yet; the outcomes of all of them. seconds: after
    which no more are waited for.
    """
    start = time.time()
    known = read(path) if path else {}
    todo = [seed for seed in seeds if seed not in known]
    outcomes = [known[seed] for seed in seeds if seed in known]
    sink = path.open("a") if path else contextlib.nullcontext()
    with sink as file:
        for outcome in _outcomes(todo, judge, workers, one):
            outcomes.append(outcome)
            if file is not None:
                file.write(json.dumps(asdict(outcome)) + "\n")
                file.flush()
            show(outcome)
            if seconds and time.time() - start > seconds:
                break
    return outcomes


def read(path: Path) -> dict[int, Outcome]:
    """What a results file holds, by seed. A line that was cut off is left out."""
    actual = {}
    if path.exists():
        for line in path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError, TypeError):
                outcome = Outcome(**json.loads(line))
                actual[outcome.seed] = outcome
    return actual


def _outcomes(todo: list[int], judge: str, workers: int, one: Callable) -> Iterator[Outcome]:
    jobs = {seed: (seed, judge, one) for seed in todo}
    if workers <= 1:
        yield from map(_guarded, jobs.values())
        return
    context = multiprocessing.get_context("spawn")
    most = 1600 if one is run_seed else 8 if any(map(_spoils, todo)) else 100
    with context.Pool(workers, initializer=_quiet, maxtasksperchild=most) as pool:
        actual = pool.imap_unordered(_guarded, list(jobs.values()))
        while jobs:
            try:
                outcome = actual.next(timeout=_patience(one))
            except multiprocessing.TimeoutError:  # a process died, and its job with it
                break
            del jobs[outcome.seed]
            yield outcome
    for job in jobs.values():
        yield _alone(job)


def _spoils(seed: int) -> bool:
    """Where a compilation in inference mode fails, stock Inductor leaves dispatch keys on, and all
    later operations of the process raise."""
    return "inference_mode" in generate(seed).hostilities


def _patience(one: Callable) -> int:
    """In seconds: longer than any program may take."""
    return 2 * (SECONDS_PER_PROGRAM if one is run_seed else SECONDS_COMPILED)


def _alone(job: tuple[int, str, Callable]) -> Outcome:
    """A program that may kill its process, in one of its own; first as eager runs it."""
    program = generate(job[0])
    context = multiprocessing.get_context("spawn")
    for status, target, args in (("eager", reference, (program,)), ("crash", _guarded, (job,))):
        with concurrent.futures.ProcessPoolExecutor(1, context, _quiet) as pool:
            try:
                actual = pool.submit(target, *args).result()
            except concurrent.futures.process.BrokenProcessPool:
                fault = "the process died"
                return Outcome.of(program, status, fault)
            except Exception:  # eager raises: the program itself tells
                continue
    return actual


def _quiet() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


class TooLong(Exception):
    """A program ran past its time."""


def _guarded(job: tuple[int, str, Callable]) -> Outcome:
    """One seed; a fault of the runner itself is a crash that shows its traceback."""
    seed, judge, one = job

    def stop(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS_PER_PROGRAM if one is run_seed else SECONDS_COMPILED)
    try:
        return one(seed, judge)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        fault = "runner: " + "".join(traceback.format_exception(error)[-3:])
        return Outcome.of(generate(seed), "crash", fault)
    finally:
        signal.alarm(0)
