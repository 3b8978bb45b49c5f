"""The findings of `gdpa doctor`: versions, kernels that can run, and a self-test.

A missing package, compiler or GPU is no error: the doctor reports it.
"""

import dataclasses
import functools
import importlib.metadata
import itertools
import json
import platform
import shutil
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ._compat import dynamo
from ._compat.versions import TESTED, is_tested, version_of
from .operands import Operands, dtype_name
from .options import KERNELS, Options
from .problem import Problem
from .program.score_mod import ScoreMod
from .proving import described
from .terminal import printable

DISTRIBUTIONS = ("gdpa-inductor", "torch", "triton", "sympy", "numpy", "nvidia-cutlass-dsl")
CASES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.float16, torch.bfloat16)}

Finding = dict[str, Any]


def versions() -> Finding:
    """The version of each distribution, or None, and those of Python and the platform."""
    releases: Finding = {"python": platform.python_version(), "platform": platform.platform()}
    releases |= {name: version_of(name) for name in DISTRIBUTIONS}
    return releases | {"torch": torch.__version__}  # with the build, such as +cu130


def devices() -> Finding:
    """The threads, the GPUs, and the C++ compiler that Inductor needs for a CPU."""
    gpus = []
    for index in range(torch.cuda.device_count()):
        seen = torch.cuda.get_device_properties(index)
        gpu = {"name": seen.name, "arch": f"sm_{seen.major}{seen.minor}"}
        cute = guarded(functools.partial(described, torch.device("cuda", index)))
        gpus.append(gpu | {"cute": str(cute)})
    compiler = next((path for name in ("g++", "clang++") if (path := shutil.which(name))), None)
    return {
        "cpu_threads": torch.get_num_threads(),
        "cxx": compiler,
        "cuda": torch.version.cuda,
        "gpus": gpus,
    }


def warnings() -> list[str]:
    """Problems of the installation, in one sentence each."""
    sentences = []
    if not is_tested():
        tested = f"{TESTED[0]} to {TESTED[-1]}"
        sentences.append(f"torch {torch.__version__} is no release in the tested range {tested}")
    points = importlib.metadata.entry_points(group="torch_dynamo_backends")
    if "gdpa" not in {point.name for point in points}:
        sentences.append('backend="gdpa" needs the package installed (its entry point is missing)')
    if devices()["cxx"] is None:
        sentences.append("no C++ compiler on PATH: Inductor cannot build for the CPU")
    return sentences


def judge(problem: Problem, kernel: str) -> object:
    """The answer of the lowerings if the user requests this kernel: a choice or a rejection."""
    from .backend import lowering_judge

    return lowering_judge(Options.make({"kernel": kernel}))(problem)


def kernels() -> list[Finding]:
    """For each device, dtype and kernel whether it `runs`; `answer`: the choice, or why not."""
    rows: list[Finding] = []
    for device, dtypes in CASES.items():
        if device == "cuda" and not torch.cuda.is_available():
            row = {"device": device, "dtype": "any", "kernel": "triton", "runs": False}
            rows.append(row | {"answer": "torch finds no NVIDIA GPU"})
            continue
        for dtype, kernel in itertools.product(dtypes, KERNELS):
            answer = guarded(functools.partial(judge, sample_problem(device, dtype), kernel))
            runs = bool(answer) and not isinstance(answer, Exception)
            row = {"device": device, "dtype": dtype_name(dtype), "kernel": kernel}
            rows.append(row | {"runs": runs, "answer": str(answer) or repr(answer)})
    return rows


def guarded(ask: Callable[[], object]) -> object:
    """The answer of `ask`, or its exception. The doctor reports exceptions and never raises one."""
    try:
        return ask()
    except Exception as error:
        return error


def sample_problem(device: str, dtype: torch.dtype) -> Problem:
    """silu attention in training, so large that a fused kernel pays."""
    query = torch.empty(4, 4, 2048, 64, dtype=dtype, device="meta")
    operands = Operands(query, query, query, (), (), ScoreMod.parse("silu(s)"))
    problem = Problem.of(operands, training=True)
    return dataclasses.replace(problem, device=torch.device(device))


def patient(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """A small attention with a bias, a mask and a scale. It uses each kind of kernel once."""
    scores = q @ k.transpose(-2, -1) * 0.125 + bias
    return (F.silu(scores) / q.size(-2)).masked_fill(~mask, 0.0) @ v


def run_patient(
    function: Callable[..., Tensor], dtype: torch.dtype, device: str
) -> tuple[Tensor, ...]:
    """The output and the gradients of q, k, v and bias. The data are the same for every dtype."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 2, 150, 64), (2, 2, 150, 64), (2, 2, 150, 64), (2, 150, 150)]
    exact = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    leaves = [t.float().to(device, dtype).requires_grad_() for t in exact]
    mask = torch.ones(150, 150, dtype=torch.bool, device=device).tril()
    out = function(*leaves, mask)
    return (out, *torch.autograd.grad(out.sum(), leaves))


def self_test(device: str) -> Finding:
    """Compile `patient`, without the cost model, and compare results with eager and fp64.

    It fails if an error is more than 4 times eager's, if nothing was rewritten, or if a kernel
    could not be built.
    """
    torch.compiler.reset()
    dynamo.counters.clear()
    options: dict[str, Any] = {"gdpa.profit": False}

    def compiled(*operands: Tensor) -> Tensor:
        from .backend import gdpa_backend  # a package that cannot be imported is a finding too

        return torch.compile(patient, backend=gdpa_backend, options=options)(*operands)

    got = guarded(lambda: run_patient(compiled, torch.float32, device))
    finding: Finding = {"device": device, "counters": dict(dynamo.counters["gdpa"])}
    if isinstance(got, Exception):
        return finding | {"passed": False, "why": f"{type(got).__name__}: {got}"}
    assert isinstance(got, tuple)
    eager = run_patient(patient, torch.float32, device)
    exact = run_patient(patient, torch.float64, device)
    names = ("output", "d query", "d key", "d value", "d bias")
    finding["errors"] = {
        name: {"gdpa": _distance(g, x), "eager": _distance(e, x)}
        for name, g, e, x in zip(names, got, eager, exact, strict=True)
    }
    wrong = [n for n, e in finding["errors"].items() if not e["gdpa"] <= 4 * e["eager"] + 1e-6]
    why = [f"wrong: {', '.join(wrong)}"] if wrong else []
    if not finding["counters"].get("matched"):
        why.append("nothing was rewritten")
    if finding["counters"].get("fallback"):
        why.append("a kernel could not be built, plain torch took its place")
    return finding | {"passed": not why, "why": "; ".join(why)}


def _distance(tensor: Tensor, exact: Tensor) -> float:
    """The largest absolute error, relative to the largest absolute value."""
    return ((tensor.double() - exact).abs().max() / exact.abs().max()).item()


def examine() -> Finding:
    """All findings as one dict, which can be written as JSON."""
    tested = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    tests = [self_test(device) for device in tested]
    return {
        "versions": versions(),
        "devices": devices(),
        "warnings": warnings(),
        "kernels": kernels(),
        "self_test": tests,
        "healthy": all(test["passed"] for test in tests),
    }


def as_text(finding: Finding) -> str:
    """All findings as text."""
    lines = ["Versions"]
    lines += [
        f"  {name:20}{value or 'not installed'}" for name, value in finding["versions"].items()
    ]
    seen = finding["devices"]
    lines += ["Devices", f"  CPU, {seen['cpu_threads']} threads; C++ compiler: {seen['cxx']}"]
    for gpu in seen["gpus"]:
        lines.append(f"  {gpu['name']} ({gpu['arch']}), CUDA {seen['cuda']}")
        lines += [f"    CuTe kernels: {gpu['cute']}"] if gpu["cute"] else []
    if not seen["gpus"]:
        lines.append("  no NVIDIA GPU")
    lines.append("Kernels (silu, 4 heads, 2048 rows, head dim 64)")
    for row in finding["kernels"]:
        runs = "runs" if row["runs"] else "no"
        request = f"{row['device']:5}{row['dtype']:10}{row['kernel']:11}"
        lines.append(f"  {request}{runs:5} {row['answer']}")
    for test in finding["self_test"]:
        lines.append(f"Self-test on {test['device']}: {'passed' if test['passed'] else 'FAILED'}")
        if test["why"]:
            lines.append(f"  {test['why']}")
        lines.append(f"  counters: {test['counters']}")
        for name, error in test.get("errors", {}).items():
            lines.append(f"  {name:9} error {error['gdpa']:.1e}, eager's {error['eager']:.1e}")
    lines += [f"Warning: {warning}" for warning in finding["warnings"]]
    return "\n".join(lines)


def report(as_json: bool) -> int:
    """Print all findings. Returns the exit status."""
    finding = examine()
    print(json.dumps(finding, indent=2) if as_json else printable(as_text(finding)))
    return 0 if finding["healthy"] else 1
