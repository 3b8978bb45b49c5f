"""Programs that look up learned tables on Hopper, on the card: the error rule, bits, memory."""

import dataclasses

import pytest
import torch

pytest.importorskip("cutlass")
pytestmark = pytest.mark.cuda

from gdpa_inductor.kernels.cute.backward import biases  # noqa: E402
from gdpa_inductor.kernels.cute.backward.launch import backward  # noqa: E402
from gdpa_inductor.kernels.cute.launch import forward  # noqa: E402
from gdpa_inductor.operands import Operands  # noqa: E402
from tests.gpu.checks import check_bits, check_gradients, hopper, on_card  # noqa: E402, F401
from tests.kernels.cute_backward_cases import exact as exact_gradients  # noqa: E402
from tests.kernels.cute_cases import check_output, formula  # noqa: E402
from tests.kernels.lookup_cases import (  # noqa: E402
    BF16,
    BOTH,
    CASES,
    CAUSAL,
    FP32,
    SILU,
    U8,
    Case,
    looked_up,
)
from tests.kernels.test_cute_lookups import EXACT, few, integers  # noqa: E402

MIB = 1 << 20


def both(n: int) -> str:
    """Causal, with a table of positions and one of times."""
    position = f"lookup(a0,add(sub(q_idx,kv_idx),{n - 1}))"
    return BOTH + CAUSAL.format(SILU.format(f"add({position},lookup(a2,a1))"))


def large(n: int, **fields) -> Case:
    sizes = {"batch": 4, "heads": 4, "rows": n, "keys": n, "dims": (64, 64), **fields}
    return looked_up(both(n), (2 * n - 1, 129), (FP32, U8, BF16), **sizes)


LARGE = {
    "D 64": large(512),
    "D 128": large(512, dims=(128, 128)),
    "no whole tiles": large(999),
    "grouped heads": large(384, key_heads=2),
    "one batch": large(1024, batch=1),
    "long": large(4096, batch=1, heads=2),
    "as on the emulator": CASES["positions, [T, H]"],
}
EVERY = LARGE | {name: case for name, case in CASES.items() if "fp16" not in name}


def call(case: Case) -> tuple[torch.Tensor, Operands[torch.Tensor]]:
    grad, o = case.call()
    return grad.cuda(), on_card(o)


def learned(o: Operands[torch.Tensor], tables: bool) -> tuple[bool, ...]:
    return (True,) * 3 + tuple(tables and spec.is_table for spec in o.program.aux)


def trains(case: Case, o: Operands[torch.Tensor]) -> bool:
    known = all(spec.axes <= {"h"} for spec in o.program.aux if spec.is_table)
    added = case not in (CASES["rounded times"], CASES["two tables of one place"])
    return known and added and not o.jagged


@pytest.mark.parametrize("name", EVERY)
def test_forward(name: str) -> None:
    _, o = call(EVERY[name])
    check_output(forward(o), o)


@pytest.mark.parametrize("room", [1, biases.TABLE_ROOM], ids=["parts", "at once"])
@pytest.mark.parametrize("name", [name for name in EVERY if name != "long"])
def test_gradients(name: str, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(biases, "TABLE_ROOM", room)
    grad, o = call(EVERY[name])
    needs = learned(o, trains(EVERY[name], o))
    fused = backward(grad, o, needs)
    exact, eager = (formula(o, x, grad, learned=True)[1:] for x in (torch.float64, BF16))
    real = [*needs[:3], *[y for x, y in zip(o.aux, needs[3:]) if x.is_floating_point()]]
    wanted = [number for number, need in enumerate(real) if need]
    check_gradients(fused, [eager[i] for i in wanted], [exact[i] for i in wanted])


@pytest.mark.parametrize("room", [1, biases.TABLE_ROOM], ids=["parts", "at once"])
@pytest.mark.parametrize("name", EXACT)
def test_sums_on_integers(name: str, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bit, where memory was not cleared."""
    monkeypatch.setattr(biases, "TABLE_ROOM", room)
    grad, o = dataclasses.replace(EXACT[name], dims=(16, 8)).call()
    grad, o = few(grad).cuda(), on_card(integers(o))
    needs = (True,) * 3 + tuple(x.is_floating_point() for x in o.aux)
    truths = exact_gradients(grad, o, needs)
    dirt = [torch.full((64 * MIB // 4,), float("nan"), device="cuda") for _ in range(8)]
    del dirt
    for mine, truth in zip(backward(grad, o, needs), truths, strict=True):
        assert torch.equal(mine, truth.to(mine.dtype))


def test_gradients_of_long_sequences() -> None:
    """Against the definition in fp64. Autograd of a look-up would take a terabyte."""
    grad, o = call(LARGE["long"])
    needs = learned(o, True)
    truths = exact_gradients(grad, o, needs)
    for mine, truth in zip(backward(grad, o, needs), truths, strict=True):
        assert (mine.double() - truth).abs().max() <= 0.02 * truth.abs().max()


@pytest.mark.parametrize("name", ["D 64", "no whole tiles"])
def test_the_same_bits_in_every_run(name: str) -> None:
    grad, o = call(LARGE[name])
    check_bits(lambda: [forward(o), *backward(grad, o, learned(o, True))], 200)


@pytest.mark.parametrize("name", ["D 64", "no whole tiles"])
def test_memory_that_was_not_written_is_not_read(name: str) -> None:
    """What lies in memory before, NaN or infinity, changes no bit."""
    grad, o = call(LARGE[name])
    run = lambda: [forward(o), *backward(grad, o, learned(o, True))]
    clean = run()
    for poison in (float("nan"), float("inf")):
        rooms = [torch.full((64 * MIB // 4,), poison, device="cuda") for _ in range(8)]
        del rooms
        assert all(map(torch.equal, run(), clean))


def test_a_place_outside_of_a_table_is_nan() -> None:
    case = dataclasses.replace(CASES["times"], tables=(60,), heads=1, key_heads=1)
    _, o = call(case)
    o.aux[1][0, 5, 3], o.aux[1][0, 69, 143] = 60, 255
    outside = (o.aux[1] >= 60).any(-1)[0]
    assert forward(o)[0, 0].isnan().any(-1).equal(outside)


def test_memory_of_a_step() -> None:
    """Beside results and the sums of dQ: what is stored of scores, and little else."""
    grad, o = call(large(1024, batch=16, heads=8))
    needs = learned(o, True)
    backward(grad, o, needs)
    results = 3 * o.query.nbytes + 2 * o.query.nbytes  # the sums are fp32
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    backward(grad, o, needs)
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < results + 2 * biases.TABLE_ROOM + 16 * MIB
