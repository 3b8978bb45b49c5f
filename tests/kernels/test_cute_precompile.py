"""CuTe kernels that other processes compile ahead: the right ones, once, and never in the way."""

import dataclasses
import gc
import os
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("cutlass")

from gdpa_inductor._compat import inductor
from gdpa_inductor.kernels.cute import disk, launch, plan, precompile
from gdpa_inductor.kernels.cute.backward import launch as backward
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.kernels.cute.sm100.config import Sm100Config
from gdpa_inductor.lowerings import begin
from gdpa_inductor.lowerings.cute import rules
from gdpa_inductor.operands import output_shape
from gdpa_inductor.ops import operands_of
from gdpa_inductor.program.score_mod import ScoreMod
from tests.kernels import fake_cuda, render
from tests.kernels.test_cute_plan import BIAS, Given, biased, dense, jagged, matrices
from tests.lowerings.test_cute_calls import BIASED, step

BF16, SIZES = torch.bfloat16, (40, 40)


def tiled() -> Given:
    bias = torch.randn(4, 40, 40, dtype=BF16)
    return operands_of(*matrices(2, 4, 40, 64), [bias], [7], BIAS)


def expanded() -> Given:
    bias = torch.randn(4, 1, 40, dtype=BF16).expand(4, 40, 40)
    return operands_of(*matrices(2, 4, 40, 64), [bias], [7], BIAS)


def copied() -> Given:
    query, key, value = matrices(2, 4, 64, 40)
    return operands_of(query.mT, key.mT, value.mT, [], [], "silu(s)")


def shared() -> Given:
    query, key, value = matrices(2, 4, 40, 64)
    return operands_of(query[:1], key, value, [], [], "silu(s)")


@pytest.mark.parametrize("kind", [Sm90Config, Sm100Config])
@pytest.mark.parametrize("make", [dense, biased, tiled, expanded, copied, shared, jagged])
def test_the_guess_is_what_the_first_call_uses(make, kind) -> None:
    inputs = make()
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) if torch.is_tensor(x) else x for x in inputs.flat()]
    guessed = precompile.guess(inputs.filled(fakes), kind, True, True)
    assert guessed == plan.plan_of(inputs, True, True, kind).config


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What goes to other processes, in place of them."""
    results: list[tuple] = []

    def in_background(task, *arguments) -> Future:
        results.append(arguments)
        return Future()

    monkeypatch.setattr(precompile, "_FUTURES", {})
    monkeypatch.setattr(disk, "keeps", lambda: True)
    monkeypatch.setattr(disk, "has", lambda *_: False)
    monkeypatch.setattr(inductor, "in_background", in_background)
    return results


SHAPES, BIAS_SHAPE = ((2, 4, 256, 64),) * 3, (4, 256, 256)


@pytest.mark.parametrize(
    ("program", "shapes"),
    [("silu(mul(s,0.125))", SHAPES), (BIASED, (*SHAPES, BIAS_SHAPE))],
    ids=["plain", "bias"],
)
def test_kernels_of_a_call_are_asked_for(monkeypatch, requests, program: str, shapes) -> None:
    """By its lowering; by a rewritten graph before it is lowered, for the backward too."""
    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")
    tensors = [torch.zeros(shape, dtype=BF16) for shape in shapes]
    render.wrapper(step("kernel=cute", program), tensors, capability=90)
    operands = operands_of(*tensors[:3], tensors[3:], [], program)
    config = plan.plan_of(operands, True, True, Sm90Config).config
    stored = 0 if tensors[3:] else None
    gradients = dataclasses.replace(config, kernel="backward", ordered=True, stored=stored)
    kernels = [("launch", config), ("launch", gradients)]
    assert requests == kernels
    requests.clear()
    precompile._FUTURES.clear()
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(len(shapes))]
    with fake_cuda.fake_cuda(90), FakeTensorMode():
        for node, shape in zip(nodes, shapes, strict=True):
            fake = torch.empty(shape, dtype=BF16, device="cuda").requires_grad_()
            node.meta["example_value"] = fake
    call = (*nodes[:3], nodes[3:], [], program, "kernel=cute")
    graph.output(graph.call_function(torch.ops.gdpa.attention.default, call))
    with fake_cuda.fake_cuda(90):
        begin(torch.fx.GraphModule({}, graph))
    assert requests == kernels


@pytest.mark.parametrize("term", ["abs(t0)", "detach(t0)"])
def test_the_backward_of_row_sums_is_asked_for(monkeypatch, requests, term: str) -> None:
    """Their gradient is an operand, unless they are detached."""
    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")
    text, graph = f"t0=tanh(s); r={term}; t0", torch.fx.Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(3)]
    with fake_cuda.fake_cuda(90), FakeTensorMode():
        fakes = [torch.empty(x, dtype=BF16, device="cuda", requires_grad=True) for x in SHAPES]
        for node, fake in zip(nodes, fakes, strict=True):
            node.meta["example_value"] = fake
        call = graph.call_function(
            torch.ops.gdpa.attention_sums.default, (*nodes, [], [], text, "kernel=cute")
        )
        sums = torch.empty(SHAPES[0][:-1], device="cuda")
        call.meta["example_value"] = (torch.empty_like(fakes[2]), sums)
    graph.output(call)
    with fake_cuda.fake_cuda(90):
        begin(torch.fx.GraphModule({}, graph))
    (_, forward), (_, gradients) = requests
    assert (forward.kernel, len(forward.matrices)) == ("forward", 2)
    known = ScoreMod.parse(gradients.program)
    assert (gradients.kernel, gradients.aux) == ("backward", ("float32",) * len(known.aux))
    assert (known.summed is None) == (known.aux == ()) == (term == "detach(t0)")


def test_later_slices_of_values_have_a_kernel_of_their_own(requests) -> None:
    """It stores no row sums."""
    config = Sm90Config("bfloat16", 64, 200, "t0=relu(s); r=t0; t0")
    precompile.forward(config, sliced=True)
    assert [x.sums for _, x in requests] == [True, False]
    requests.clear()
    precompile.forward(dataclasses.replace(config, program="relu(s)"), sliced=True)
    assert [x.sums for _, x in requests] == [True]


class Launched(Exception):
    """In place of a launcher: the kernel that a call launches first."""


def two_biases() -> Given:
    aux = [torch.randn(40, 40, dtype=BF16), torch.randn(4, 40, 40, dtype=BF16)]
    program = "a0:f[q_idx,kv_idx]; a1:f[h,q_idx,kv_idx]; silu(add(add(s,a0),a1))"
    return operands_of(*matrices(2, 4, 40, 64), aux, [], program)


def shared_biased() -> Given:
    query, key, value = matrices(2, 4, 40, 64)
    bias = torch.randn(4, 40, 40, dtype=BF16)
    return operands_of(query[:1], key, value, [bias], [7], BIAS)


def jagged_biased() -> Given:
    rows, ends = [torch.randn(12, 4, 64, dtype=BF16) for _ in range(3)], torch.tensor([0, 5, 12])
    bias = torch.randn(4, 8, 8, dtype=BF16)
    return operands_of(*rows, [bias], [7], BIAS, ends, ends, 8, 8)


@pytest.mark.parametrize("folder", ["sm90", "sm100"])
@pytest.mark.parametrize(
    ("make", "learned"),
    [(tiled, 0), (expanded, 0), (two_biases, 0), (two_biases, 1), (shared_biased, 0),
     (jagged_biased, 0)],
)  # fmt: skip
def test_the_kernel_of_a_gradient_of_a_bias_is_what_the_first_call_launches(
    monkeypatch, requests, folder: str, make, learned: int
) -> None:
    kind = {"sm90": Sm90Config, "sm100": Sm100Config}[folder]
    inputs = make()
    needs = [True, True, True, *(i == learned for i in range(len(inputs.aux)))]
    sizes = precompile.likely_sizes(inputs)
    precompile.backward(plan.plan_of(inputs, True, True, kind).config, needs, True, sizes)

    def launched(*form) -> None:
        raise Launched(*form)

    monkeypatch.setattr(launch, "launcher", launched)
    with pytest.raises(Launched) as first:
        grad_out = torch.zeros(output_shape(inputs), dtype=BF16)
        backward.backward(grad_out, inputs, needs, ctas=1, stream=0, kind=kind)
    assert ("launch", *first.value.args) == requests[0]
    assert requests[-1][1].stored == learned


def gradients_of(config: Sm90Config) -> Sm90Config:
    return dataclasses.replace(config, kernel="backward")


def test_what_was_asked_for_is_not_asked_for_again(requests) -> None:
    config = plan.plan_of(dense(), True, True, Sm90Config).config
    for _ in range(2):
        precompile.forward(config)
        precompile.backward(config, [True] * 3, True, SIZES)
    assert requests == [("launch", config), ("launch", gradients_of(config))]


def test_what_lies_on_disk_is_not_asked_for(monkeypatch, requests) -> None:
    config = plan.plan_of(dense(), True, True, Sm90Config).config
    monkeypatch.setattr(disk, "has", lambda _, config: config.kernel == "forward")
    precompile.forward(config)
    precompile.backward(config, [True] * 3, True, SIZES)
    assert requests == [("launch", gradients_of(config))]


def test_on_blackwell_each_side_has_a_kernel(requests) -> None:
    config = plan.plan_of(dense(), True, True, Sm100Config).config
    precompile.backward(config, [True] * 3, True, SIZES)
    assert [inputs[1].kernel for inputs in requests] == ["keys", "rows"]
    assert [dataclasses.replace(inputs[1], kernel="forward") for inputs in requests] == [config] * 2


def test_without_a_place_on_disk_nothing_is_asked_for(monkeypatch, requests) -> None:
    monkeypatch.setattr(disk, "keeps", lambda: False)
    precompile.forward(plan.plan_of(dense(), True, True, Sm90Config).config)
    assert not requests


def failed() -> Future:
    future: Future = Future()
    future.set_exception(OSError("no such process"))
    return future


@pytest.mark.parametrize("make", [failed, Future], ids=["failed", "late"])
def test_a_process_that_fails_is_in_nobodys_way(monkeypatch, requests, make) -> None:
    monkeypatch.setattr(inductor, "in_background", lambda *_: make())
    monkeypatch.setattr(precompile, "PATIENCE", 0.01)
    config = plan.plan_of(dense(), True, True, Sm90Config).config
    precompile.forward(config)
    precompile.finish("launch", config)


def test_lowering_goes_on_where_asking_fails(monkeypatch) -> None:
    def broken(*_):
        raise RuntimeError("no processes")

    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")
    monkeypatch.setattr(precompile, "_request", broken)
    tensors = [torch.zeros(2, 4, 256, 64, dtype=BF16) for _ in range(3)]
    assert "calls_forward_site(True)" in render.wrapper(step("kernel=cute"), tensors, capability=90)


def test_the_process_that_compiles_searches_no_old_objects(monkeypatch) -> None:
    """Importing cutlass and tracing took a fifth of their time to look for garbage in torch."""
    counts = []
    monkeypatch.setattr(disk, "kernel_file", lambda *_: counts.append(gc.get_freeze_count()))
    gc.unfreeze()
    try:
        precompile._keep("launch", Sm90Config("bfloat16", 64, 64, "relu(s)"))
    finally:
        gc.unfreeze()
    assert counts[0] > 10_000


PROGRAM = """
import sys
import torch._inductor.config
from gdpa_inductor.kernels.cute import precompile
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config

def never(config):
    sys.exit("compiled here")

if __name__ == "__main__":
    torch._inductor.config.compile_threads = 2
    config = Sm90Config("bfloat16", 64, 64, "relu(s)")
    precompile.forward(config)
    assert "cutlass" not in sys.modules
    from gdpa_inductor.kernels.cute import disk, launch

    precompile.finish("launch", config)
    launch.compiled = never
    assert disk.kernel_file("launch", config) is not None
"""


def test_a_process_of_inductor_compiles(tmp_path: Path) -> None:
    """A real one. The process that asked loads what was kept."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHINDUCTOR_", "CUTE_"))}
    clean["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=clean, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert len(list((tmp_path / disk.FOLDER).glob("*/*.o"))) == 1
