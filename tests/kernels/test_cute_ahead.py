"""CuTe kernels that other processes compile ahead: the right ones, once, and never in the way."""

import dataclasses
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
from gdpa_inductor.kernels.cute import ahead, disk, launch, plan
from gdpa_inductor.kernels.cute.backward import launch as backward
from gdpa_inductor.kernels.cute.sm90.backward import launch as hopper
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.kernels.cute.sm100.config import Sm100Config
from gdpa_inductor.lowerings import cute
from gdpa_inductor.ops import operands_of
from tests.kernels import render
from tests.kernels.test_cute_plan import BIAS, Given, biased, dense, jagged, matrices

BF16 = torch.bfloat16


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
    given = make()
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) if torch.is_tensor(x) else x for x in given.flat()]
    guessed = ahead.guess(given.filled(fakes), kind, True, True)
    assert guessed == plan.made(given, True, True, kind).config


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What goes to other processes, in place of them."""
    found: list[tuple] = []

    def in_background(task, *given) -> Future:
        found.append(given)
        return Future()

    monkeypatch.setattr(ahead, "_ASKED", {})
    monkeypatch.setattr(disk, "keeps", lambda: True)
    monkeypatch.setattr(inductor, "in_background", in_background)
    return found


def step(bias: bool):
    def run(query, key, value, *aux):
        program = "a0:f[h,q_idx,kv_idx]; silu(add(s,a0))" if bias else "silu(mul(s,0.125))"
        out = torch.ops.gdpa.attention(query, key, value, aux, [], program, "kernel=cute")
        needs = [True, True, True, *(True for _ in aux)]
        return out, *torch.ops.gdpa.attention_backward(
            out, query, key, value, aux, [], program, needs, "kernel=cute"
        )

    return run


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_lowering_asks_for_the_kernels_of_the_call(monkeypatch, asked, bias: bool) -> None:
    monkeypatch.setattr(cute, "installed", lambda: "4.8.1")
    tensors = [torch.zeros(2, 4, 256, 64, dtype=BF16) for _ in range(3)]
    aux = [torch.zeros(4, 256, 256, dtype=BF16)] * bias
    render.wrapper(step(bias), [*tensors, *aux], capability=90)
    program = "a0:f[h,q_idx,kv_idx]; silu(add(s,a0))" if bias else "silu(mul(s,0.125))"
    operands = operands_of(*tensors, aux, [], program)
    config = plan.made(operands, True, True, Sm90Config).config
    expected = [(launch.kept, config)]
    if not bias:  # which kernels give gradients of biases is settled by the first call
        expected.append((hopper.kept, dataclasses.replace(config, ordered=True)))
    assert asked == expected


def test_what_was_asked_for_is_not_asked_for_again(asked) -> None:
    config = plan.made(dense(), True, True, Sm90Config).config
    for _ in range(2):
        launch.compile_ahead(config)
        backward.compile_ahead(config, True)
    assert asked == [(launch.kept, config), (hopper.kept, config)]


def test_on_blackwell_each_side_has_a_kernel(asked) -> None:
    config = plan.made(dense(), True, True, Sm100Config).config
    backward.compile_ahead(config, True)
    assert [given[1:] for given in asked] == [(config, "keys"), (config, "rows")]


def test_without_a_place_on_disk_nothing_is_asked_for(monkeypatch, asked) -> None:
    monkeypatch.setattr(disk, "keeps", lambda: False)
    launch.compile_ahead(plan.made(dense(), True, True, Sm90Config).config)
    assert not asked


def failed() -> Future:
    future: Future = Future()
    future.set_exception(OSError("no such process"))
    return future


@pytest.mark.parametrize("make", [failed, Future], ids=["failed", "late"])
def test_a_process_that_fails_is_in_nobodys_way(monkeypatch, asked, make) -> None:
    monkeypatch.setattr(inductor, "in_background", lambda *_: make())
    monkeypatch.setattr(ahead, "PATIENCE", 0.01)
    config = plan.made(dense(), True, True, Sm90Config).config
    launch.compile_ahead(config)
    ahead.finish(launch.kept, config)


def test_lowering_goes_on_where_asking_fails(monkeypatch) -> None:
    def broken(*_):
        raise RuntimeError("no processes")

    monkeypatch.setattr(cute, "installed", lambda: "4.8.1")
    monkeypatch.setattr(ahead, "ask", broken)
    tensors = [torch.zeros(2, 4, 256, 64, dtype=BF16) for _ in range(3)]
    assert "gdpa_forward_site(True)" in render.wrapper(step(False), tensors, capability=90)


PROGRAM = """
import sys
import torch._inductor.config
from gdpa_inductor.kernels.cute import ahead, launch
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config

def never(config):
    sys.exit("compiled here")

if __name__ == "__main__":
    torch._inductor.config.compile_threads = 2
    config = Sm90Config("bfloat16", 64, 64, "relu(s)")
    launch.compile_ahead(config)
    ahead.finish(launch.kept, config)
    launch.compiled = never
    assert launch.kept(config) is not None
"""


def test_a_process_of_inductor_compiles(tmp_path: Path) -> None:
    """A real one. The process that asked loads what was kept."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHINDUCTOR_", "CUTE_"))}
    clean["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path)
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=clean, capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stderr
    assert len(list((tmp_path / disk.FOLDER).glob("*/*.o"))) == 1
