"""Cases are what they say, and a call is held to the error rule and to equal bits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gdpa_inductor.kernels.cute import certificates, precompile, tables
from gdpa_inductor.kernels.cute.certificates import FAMILIES, shape_of
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.kernels.cute.sm100.config import Sm100Config, Sm100OneCta
from gdpa_inductor.ops import Arguments
from gdpa_inductor.proving import cases, checks, child, speed, watchdog
from gdpa_inductor.proving.cases import CASES, SHAPES, Case
from gdpa_inductor.reference import reference, reference_backward

CPU = torch.device("cpu")
SMALL = [
    pytest.param(family, case, id=f"{family}-{case.name}")
    for family, of_family in CASES.items()
    for case in of_family
    if not case.name.startswith("many")
]


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks, "RUNS", 3)


def prepared(family: str, case: Case):
    """A call of the reference, eager's results, exact ones, the direction."""
    o = case.operands(CPU)
    needs = case.needs(o, family)
    grad_out = case.grad_out(o) if needs else None
    formula = checks.stored if family == "weights" else checks.unfused
    eager, exact = (formula(o, x, grad_out, needs) for x in (case.dtype, torch.float64))
    if family == "weights":
        run = lambda: checks.stored(o, case.dtype, grad_out, needs)
    else:
        run = lambda: reference_backward(grad_out, o, needs) if needs else [reference(o)]
    return run, eager, exact, "backward" if needs else "forward"


@pytest.mark.parametrize(("family", "case"), SMALL)
def test_what_is_right_passes(family: str, case: Case):
    """The reference, in spite of all NaN around the operands; so eager's formula is right too."""
    assert checks.verdict(*prepared(family, case), CPU) == ""


@pytest.mark.parametrize(("family", "case"), SMALL)
def test_every_operand_lies_among_nan(family: str, case: Case):
    o = case.operands(CPU)
    for x in (o.query, o.key, o.value, *o.aux):
        memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
        assert x.dtype == torch.bool or memory.isnan().any()
        assert x.data_ptr() % 16 == 0
    assert all(torch.equal(a, b) for a, b in zip(o.aux, case.operands(CPU).aux, strict=True))


DENSE = Case("dense", rows=70, keys=90, dims=(32, 32))


def altered(results: Sequence[Tensor], change) -> list[Tensor]:
    return [change(x.clone()) for x in results]


def moved(x: Tensor) -> Tensor:
    return x.roll(1, -2)


def one_is_nan(x: Tensor) -> Tensor:
    x[..., -1, -1] = torch.nan
    return x


def one_is_off(x: Tensor) -> Tensor:
    x[..., -1, -1] += x.abs().max()
    return x


@pytest.mark.parametrize("family", ["forward", "backward"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (moved, "maximal error"),
        (one_is_nan, "NaN or infinity"),
        (one_is_off, "maximal error"),
        (lambda x: x * 1.02, "error"),
        (lambda x: x.float(), "dtype"),
    ],
)
def test_what_is_wrong_is_told(family: str, change, reason: str):
    run, *rest = prepared(family, DENSE)
    found = checks.verdict(lambda: altered(run(), change), *rest, CPU)
    assert found.startswith("result 0: ") and reason in found


def test_other_bits_in_a_later_run_are_told():
    """As those of a race: each run is within the error rule."""
    run, eager, exact, direction = prepared("forward", DENSE)
    count = iter(range(100))

    def racing() -> list[Tensor]:
        return altered(run(), lambda x: x if next(count) < 2 else x.nextafter(x + 1))

    assert checks.verdict(racing, eager, exact, direction, CPU) == "bits differ from run to run"


@pytest.mark.parametrize("kind", [Sm90Config, Sm100Config])
def test_workers_compile_every_kernel_of_a_family(kind, monkeypatch):
    asked = []
    monkeypatch.setattr(checks, "trusted_config_of", lambda device: kind)
    monkeypatch.setattr(checks.workers, "_request", lambda *key: asked.append(key))
    monkeypatch.setattr(certificates, "config_of", lambda device: kind)
    families = [x for x in certificates.families_of(CPU) if x != "tables"]
    for family in families:
        asked.clear()
        names = [name for name, _ in checks.checks_of(family, CPU)]
        assert len(names) == len(set(names)) >= 4
        assert len(asked) >= len(names) and all(isinstance(x, kind) for _, x in asked)
        assert ("wide" in names) == (family == "forward")
    assert set(CASES) | {"tables"} == set(FAMILIES)


def test_sums_of_look_ups_are_held_to_fp64():
    for name, make in checks.checks_of("tables", CPU):
        _, (eager,), (exact,) = make()
        assert eager.dtype == torch.float32 and exact.dtype == torch.float64
        assert name and checks.verdict(lambda e=eager: [e], [eager], [exact], "backward", CPU) == ""


@pytest.mark.parametrize("sizes", [sizes for sizes, _ in cases.TABLES], ids=str)
def test_tables_are_no_larger_than_the_kernel_takes(sizes: tuple[int, int, int]):
    assert tables.threads_for(sizes[2]) in tables.THREADS


def test_a_case_calls_what_generated_code_calls(monkeypatch):
    seen = []

    def site_of(signature, run):
        def site(*args, **options):
            seen.append((signature.bind(*args, **options), options))
            return run(seen[-1][0])

        return lambda known: site

    forward = site_of(checks.FORWARD, lambda a: reference(a.operands))
    backward = site_of(
        checks.BACKWARD, lambda a: reference_backward(a.grad_out, a.operands, a.needs)
    )
    monkeypatch.setattr(checks, "forward_site", forward)
    monkeypatch.setattr(checks, "backward_site", backward)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    for family in ("forward", "backward"):
        run, eager, exact = checks._attention(DENSE, family, CPU)
        assert checks.verdict(run, eager, exact, family, CPU) == ""
    (first, options), (last, of_backward) = seen[0], seen[-1]
    assert isinstance(first, Arguments) and options == {"fast": True, "skip": True}
    assert last.needs == (True,) * 3 and of_backward == {**options, "ordered": True}


def test_ten_shapes_are_timed():
    assert len(SHAPES) == len({(family, case.name) for family, case in SHAPES}) == 10
    for _, case in SHAPES:
        assert case.name == shape_of(isinstance(case.rows, tuple), max(case.dims))


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
@pytest.mark.parametrize("number", range(0, 10, 3))
def test_what_is_timed_is_the_case(number: int, kernel: str):
    family, case = SHAPES[number]
    rows = (30, 0, 41) if isinstance(case.rows, tuple) else 40
    case = replace(case, batch=2, rows=rows, keys=rows, dims=(16, 16), dtype=torch.float32)
    got = speed.compiled(family, case, kernel, CPU)()
    o = case.operands(CPU)
    needs = case.needs(o, family)
    want = reference_backward(case.grad_out(o), o, needs) if needs else [reference(o)]
    for x, y in zip(got if needs else [got], want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


def test_one_case_of_each_family_has_more_tiles_than_a_gpu_has_multiprocessors():
    for of_family in CASES.values():
        assert max(_tiles(case) for case in of_family) > 148


def _tiles(case: Case) -> int:
    lengths = case.rows if isinstance(case.rows, tuple) else (case.rows,) * case.batch
    return case.heads * sum(-(-length // 256) for length in lengths)


def test_lengths_of_many_sequences_differ():
    assert len(set(cases.MANY)) > 40 and max(cases.MANY) < 640


ENDS = {
    "right": (lambda: "", {"verdict": ""}, 0),
    "wrong": (lambda: "off", {"verdict": "off"}, 0),
    "a fault": (None, {"verdict": "RuntimeError: CUDA error: illegal"}, 1),
    "no memory": (None, {"doing": watchdog.STARVES}, 1),
}
RAISED = {
    "a fault": RuntimeError("CUDA error: illegal\nCUDA kernel errors might be"),
    "no memory": torch.OutOfMemoryError("CUDA out of memory"),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_a_child_notes_of_a_case(name: str, monkeypatch):
    """An error ends it, since no later case could be trusted."""
    judge, line, status = ENDS[name]
    notes: list[dict] = []

    def verdict(*_):
        if judge is None:
            raise RAISED[name]
        return judge()

    made = [(case, lambda: (lambda: None, (), ())) for case in ("first", "second")]
    monkeypatch.setattr(checks, "checks_of", lambda *_: made)
    monkeypatch.setattr(checks, "verdict", verdict)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    assert child._prove("forward", CPU, lambda **x: notes.append(x)) == status
    begin = [{"case": "first", "doing": x} for x in (watchdog.COMPILES, watchdog.RUNS)]
    assert notes[:3] == [*begin, {"case": "first", **line}]
    assert len(notes) == (3 if status else 6)


def test_what_a_child_notes_of_times(monkeypatch):
    """Triton's fault leaves out a time, a fault of ours ends it."""
    notes: list[dict] = []

    def compiled(family: str, case: Case, kernel: str, device: torch.device):
        if (kernel, family) in (("triton", "forward"), ("cute", "backward")):
            raise RuntimeError("broken")
        return lambda: None

    monkeypatch.setattr(speed, "compiled", compiled)
    monkeypatch.setattr(speed, "milliseconds", lambda run: 1.5)
    assert child._time(["forward"], CPU, lambda **x: notes.append(x)) == 0
    assert sum("milliseconds" in x for x in notes) == 6
    assert {x["kernel"] for x in notes if "verdict" in x} == {"triton"}
    notes.clear()
    assert child._time(["forward", "backward"], CPU, lambda **x: notes.append(x)) == 1
    assert notes[-1]["verdict"] == "RuntimeError: broken" and notes[-1]["kernel"] == "cute"


@pytest.mark.parametrize("family", ["backward", "biases"])
def test_both_forms_of_blackwells_backward_are_proved(family: str):
    """A kernel for each side, and one for both, with dense and with jagged sides; no pair."""
    forms = {(jagged, len(kernels)) for jagged, kernels in backwards(family, Sm100OneCta)}
    assert {(False, 1), (False, 2), (True, 1)} <= forms
    assert all(x.ctas == 1 for _, kernels in backwards(family, Sm100OneCta) for x in kernels)


def test_the_pairs_of_blackwell_are_proved():
    """Every case takes a pair of CTAs. Dense and jagged sides do, and one stores a bias."""
    found = backwards("pairs", Sm100Config)
    assert all(len(kernels) == 1 and kernels[0].ctas == 2 for _, kernels in found)
    assert {jagged for jagged, _ in found} == {False, True}
    assert {kernels[0].stored for _, kernels in found} == {None, 0}


def backwards(family: str, kind: type[Sm100Config]) -> list[tuple[bool, list[Any]]]:
    """Of each case of a family: whether it is jagged, and its kernels."""
    result = []
    for case in CASES[family]:
        o = case.operands(CPU)
        needs = case.needs(o, family)
        config = precompile.guess(o, kind, fast=True, skip=True)
        stored = next((number for number, need in enumerate(needs[3:]) if need), None)
        kernels = config.backward_kernels(True, stored, precompile.likely_sizes(o))
        result.append((o.jagged, kernels))
    return result
