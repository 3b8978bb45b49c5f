"""Static calls of the generated code, again: a replay hands the kernels what a first run would, and
only calls that launch and nothing else are replayed. Nothing is compiled; a recorder is in place of
kernels.
"""

import functools
from collections.abc import Callable, Sequence

import pytest
import torch

from gdpa_inductor.kernels.cute import bounds, launch, plan, replay
from gdpa_inductor.kernels.cute.backward import biases
from gdpa_inductor.kernels.cute.backward import launch as backward_launch
from gdpa_inductor.kernels.cute.launcher import SIZES, TOTALS, Launcher, WordLauncher
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.lowerings.cute import calls
from gdpa_inductor.ops import Arguments, operands_of

from .cute_cases import BF16
from .test_cute_plan import Recorder, moved

STREAM, CTAS = 5, 3
NUMBERS = SIZES + TOTALS + 1  # behind the addresses of matrices
BIAS = "a0:f[h,q_idx,kv_idx]; mul(silu(add(s,a0)),float(i0))"
CAUSAL = "where(ge(q_idx,kv_idx),silu(s),0.0)"


def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """The forward's and the backward's recorder. Memory of a replay lies on the CPU."""
    forward, backward = Recorder(), Recorder()

    @functools.cache
    def launcher(config: Sm90Config) -> Launcher:
        return Launcher(forward if config.kernel == "forward" else backward, config)

    monkeypatch.setattr(launch, "launcher", launcher)
    find = plan.plan_of
    for module in (launch, backward_launch):
        monkeypatch.setattr(module, "place", lambda *_: (CTAS, STREAM))
        monkeypatch.setattr(
            module, "plan_of", lambda o, fast, skip, kind: find(o, fast, skip, Sm90Config)
        )
    monkeypatch.setattr(replay, "current_stream", lambda _: STREAM)
    monkeypatch.setattr(replay, "empty_strided", lambda *x: torch.empty_strided(*x[:2], dtype=x[2]))
    monkeypatch.setattr(plan, "PLANS", {})
    return [forward, backward]


def clears(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Those of replays: address, words, stream."""
    outputs: list[tuple[int, int, int]] = []
    monkeypatch.setattr(replay, "clear", lambda *call: outputs.append(call))
    return outputs


kernels = pytest.fixture(autouse=True)(recorders)
cleared = pytest.fixture(autouse=True)(clears)


def recorded(site: calls.Site) -> int:
    """Forms that are replayed."""
    return sum(replay is not None for replay in site.replays.values())


def matrix(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=BF16)


def dense() -> list:
    return [*(matrix(2, 4, 40, 64) for _ in range(3)), [], [], "silu(s)"]


def biased(scalar: int = 7) -> list:
    return [*dense()[:3], [torch.zeros(4, 40, 40)], [scalar], BIAS]


# Replayed. A projection leaves rows side by side, which are read in place.
FORMS: dict[str, Callable[[], list]] = {
    "dense": dense,
    "masked": lambda: [*dense()[:5], CAUSAL],
    "biased": biased,
    "grouped": lambda: [dense()[0], *(matrix(2, 2, 24, 64) for _ in range(2)), [], [], "silu(s)"],
    "transposed": lambda: [matrix(2, 40, 4, 64).transpose(1, 2), *dense()[1:]],
}
# Run as the first one.
OTHERS: dict[str, Callable[[], list]] = {
    "expanded": lambda: [dense()[0], matrix(2, 4, 1, 64).expand(2, 4, 40, 64), *dense()[2:]],
    "empty": lambda: [matrix(2, 4, 0, 64), *dense()[1:]],
    "shared": lambda: [matrix(1, 4, 40, 64), *dense()[1:]],
}


def of_backward(args: list, letters: str = "qkv", wanted: bool = False) -> list:
    """The arguments of a backward from those of a forward. wanted: also gradients of operands."""
    query, value = args[0], args[2]
    grad = torch.zeros(
        *(2, 4, query.shape[2]) if query.dim() == 4 else query.shape[:2],
        value.shape[-1],
        dtype=BF16,
    )
    needs = [letter in letters for letter in "qkv"] + [wanted] * len(args[3])
    return [grad, *args[:6], needs, *args[6:]]


def words(recorder: Recorder) -> list[int]:
    return recorder.launches[-1]


def without_places(found: list[int], matrices: int, aux: Sequence[torch.Tensor]) -> list[int]:
    """Without the addresses of matrices and operands of the program."""
    places = [x.data_ptr() for x in aux]
    return [word for word in found[matrices:] if word not in places]


@pytest.mark.parametrize("form", FORMS)
def test_a_forward_is_replayed_with_the_words_of_a_first_run(form: str, kernels):
    site = calls.forward_site(True)
    for later in range(3):
        args = FORMS[form]()
        out = site(*args)
        assert recorded(site) and len(kernels[0].launches) == later + 1
        result = words(kernels[0])
        assert result[:4] == [x.data_ptr() for x in (*args[:3], out)]
        fresh = launch.forward(operands_of(*args), out=out, kind=Sm90Config)
        assert words(kernels[0]) == result and fresh is out
        kernels[0].launches.pop()


def test_slices_of_the_values_are_replayed_with_the_words_of_a_first_run(kernels):
    site, seen = calls.forward_site(True), []
    for _ in range(2):
        args = [*dense()[:2], matrix(2, 4, 40, 600), [], [], "silu(s)"]
        out = site(*args)
        query, key, value = args[:3]
        places = [value.data_ptr(), out.data_ptr()]
        outputs = [*kernels[0].launches]
        kernels[0].launches.clear()
        assert [call[:2] for call in outputs] == [[query.data_ptr(), key.data_ptr()]] * 3
        assert [call[2:4] for call in outputs] == [[x + 400 * i for x in places] for i in range(3)]
        seen.append([call[4:] for call in outputs])
    assert recorded(site) and seen[0] == seen[1]


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "in any order"])
@pytest.mark.parametrize("letters", ["qkv", "kv", "q"])
@pytest.mark.parametrize("form", FORMS)
def test_a_backward_is_replayed_with_the_words_of_a_first_run(
    form: str, letters: str, ordered: bool, kernels, cleared
):
    site = calls.backward_site(True)
    before = of_backward(FORMS[form](), letters)
    first = site(*before, ordered=ordered)
    settled = words(kernels[1])
    args = of_backward(FORMS[form](), letters)
    grad, query, key, value = args[:4]
    result = site(*args, ordered=ordered)
    again = words(kernels[1])
    assert len(kernels[1].launches) == 2
    assert [(x.shape, x.stride(), x.dtype) for x in result] == [
        (x.shape, x.stride(), x.dtype) for x in first
    ]
    # Query, key, value, the gradient of O, sums, gradients of key, value and query, counters.
    addresses = dict(zip("qkvosKVQc", again, strict=False))
    assert [addresses[x] for x in "qkvo"] == [x.data_ptr() for x in (query, key, value, grad)]
    assert [addresses[x.upper()] for x in letters] == [x.data_ptr() for x in result]
    assert without_places(again, 9, args[4]) == without_places(settled, 9, before[4])
    counters, sums = 4 * 2 * 1, query.numel() // 2
    expected = [(addresses["c"], counters, STREAM)]
    if not ordered:  # nobody is the first to add
        expected.append((addresses["s"], 2 * sums, STREAM))
    if form == "masked":  # query tiles that meet no key are left out
        expected.append((addresses["Q"], sums, STREAM))
    assert sorted(cleared) == sorted(expected)


def test_scalars_are_of_the_call(kernels):
    site = calls.forward_site(True)
    for scalar in (1, -(1 << 40), 3):
        site(*biased(scalar))
        assert words(kernels[0])[-3:] == [scalar, CTAS, STREAM]


@pytest.mark.parametrize("form", OTHERS)
def test_other_calls_are_run_as_the_first_one(form: str):
    args = OTHERS[form]()
    sites = calls.forward_site(True), calls.backward_site(True)
    sites[1](*of_backward(args))
    assert not recorded(sites[1])
    if form != "shared":
        sites[0](*args)
        assert not recorded(sites[0])


def test_a_gradient_of_the_output_that_is_copied_is_not_replayed(kernels):
    site = calls.backward_site(True)
    grad, *rest = of_backward(dense())
    site(grad[:, :, :1].expand(grad.shape), *rest)
    assert not recorded(site)


HIDDEN = "a0:f[h,q_idx,kv_idx]; a1:b[q_idx,kv_idx]; where(a1,silu(add(s,a0)),0.0)"


def hidden() -> list:
    """Under a mask tensor whose rows lie apart."""
    mask = torch.zeros(40, 60, dtype=torch.bool)[:, :40]
    return [*dense()[:3], [torch.zeros(4, 40, 40), mask], [], HIDDEN]


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """In place of the kernel that makes a table of bounds."""
    recorder = Recorder()
    launcher = WordLauncher(recorder, bounds.WORDS)
    monkeypatch.setattr(bounds, "word_launcher", lambda *_: launcher)
    return recorder


@pytest.mark.parametrize("number", [0, 1], ids=["forward", "backward"])
def test_the_table_of_a_mask_is_of_the_call(number: int, kernels, looking):
    """The kernel takes the table that was made of the mask of its call."""
    site = (calls.forward_site, calls.backward_site)[number](True)
    for later in range(3):
        args = of_backward(hidden()) if number else hidden()
        site(*args)
        assert recorded(site) and len(looking.launches) == later + 1
        source, table, *numbers = looking.launches[-1]
        assert source == args[3 + number][1].data_ptr()
        assert numbers == [1, 1, 40, 40, 0, 0, 60, 1, STREAM]
        matrices = 9 if number else 4
        first = matrices + NUMBERS + 3 * matrices
        bias, mask, behind = words(kernels[number])[first : first + 21 : 7]
        assert [bias, mask, behind] == [*(x.data_ptr() for x in args[3 + number]), table]


MATRICES = 10  # of a backward that stores the gradient of an operand


LEARNED = {
    "of heads": ((4, 40, 40), "a0:f[h,q_idx,kv_idx]; silu(add(s,a0))"),
    "of each score": ((2, 4, 40, 40), "a0:f[b,h,q_idx,kv_idx]; silu(add(s,a0))"),
    "of batches": ((2, 40, 40), "a0:f[b,q_idx,kv_idx]; silu(add(s,a0))"),
    "under a mask": (
        (4, 40, 40), "a0:f[h,q_idx,kv_idx]; where(ge(q_idx,kv_idx),silu(add(s,a0)),0.0)"
    ),
}  # fmt: skip


def learned(name: str) -> list:
    shape, program = LEARNED[name]
    return of_backward([*dense()[:3], [matrix(*shape)], [], program], wanted=True)


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """In place of the kernel that sums what is stored."""
    recorder = Recorder()
    launcher = WordLauncher(recorder, 8)
    monkeypatch.setattr(biases, "word_launcher", lambda *_: launcher)
    return recorder


@pytest.mark.parametrize("room", [1, biases.ROOM], ids=["parts", "at once"])
@pytest.mark.parametrize("name", LEARNED)
def test_gradients_of_biases_are_replayed_with_the_words_of_a_first_run(
    name: str, room: int, kernels, cleared, sums, monkeypatch
):
    """Every address as far from where its tensor begins as in the first run, tensor by tensor."""
    monkeypatch.setattr(biases, "ROOM", room)
    monkeypatch.setattr(biases, "GOOD", 0.0)  # as many at a time as there is room for
    site, runs = calls.backward_site(True), []
    for _ in range(2):
        kernels[1].launches.clear()
        sums.launches.clear()
        args = learned(name)
        results = site(*args)
        assert [x.shape for x in results] == [x.shape for x in (*args[1:4], *args[4])]
        runs.append((args, results, kernels[1].launches[:], sums.launches[:]))
    if name == "under a mask" and room == 1:
        assert not recorded(site)  # rows of a part lie apart, and are cleared by torch
        return
    assert recorded(site)
    parts = 1 if room > 1 or name == "of each score" else {"of batches": 2}.get(name, 4)
    for args, results, launches, summed in runs:
        assert len(launches) == parts and len(summed) == parts * (name != "of each score")
        tensors = [*args[1:4], args[0], results[1], results[2], results[0], args[4][0]]
        for result in launches:
            matrices = [*result[:4], *result[5:8], result[MATRICES + NUMBERS + 3 * MATRICES]]
            offsets = [x - y.data_ptr() for x, y in zip(matrices, tensors, strict=True)]
            assert all(0 <= x < y.nbytes for x, y in zip(offsets, tensors, strict=True))
    first, again = (
        [
            [x - tensors.data_ptr() for x, tensors in zip(result, [*args[1:4], args[0]])]
            for result in launches
        ]
        for args, _, launches, _ in runs
    )
    assert first == again
    _, results, launches, summed = runs[1]
    stored = [result[MATRICES - 1] for result in launches]
    assert not summed or stored == [result[0] for result in summed]
    targets = [result[1] - results[3].data_ptr() for result in summed]
    assert targets == [i * (results[3].nbytes // parts) for i in range(len(summed))]


def test_a_form_that_is_not_replayed_is_not_recorded_again(kernels, monkeypatch):
    """Recording takes longer than the run."""
    arguments: list = []
    monkeypatch.setattr(calls, "Record", lambda: arguments.append(replay.Record()) or arguments[-1])
    for form, static in (("expanded", True), ("expanded", False), ("empty", False)):
        arguments.clear()
        site = calls.forward_site(static)
        for _ in range(3):
            site(*OTHERS[form]())
        assert len(arguments) == 1 and not recorded(site)


def test_sums_by_torch_are_not_replayed(kernels, monkeypatch):
    monkeypatch.setattr(backward_launch, "total", lambda *_: False)
    site = calls.backward_site(True)
    assert len(site(*learned("of heads"))) == 4
    assert kernels[1].launches and not recorded(site)


@pytest.mark.parametrize("name", LEARNED)
def test_a_gradient_takes_the_memory_of_a_spare_operand(name: str, kernels, sums, monkeypatch):
    """Where the backward runs once, and nothing clears what a kernel still has to read."""
    monkeypatch.setattr(biases, "GOOD", 0.0)
    site, once = calls.backward_site(True, (0,)), [True]
    monkeypatch.setattr(calls, "last_use", lambda: once[0])
    for once[0] in (True, False, True, False):
        args = learned(name)
        bias = args[4][0]
        result = site(*args)[3]
        assert result is not bias and result.shape == bias.shape
        assert (result.data_ptr() == bias.data_ptr()) == once[0]
    assert set(site.replays) == {True, False}


def test_a_masked_gradient_that_is_stored_directly_has_its_own_memory(kernels, sums, monkeypatch):
    monkeypatch.setattr(calls, "last_use", lambda: True)
    masked = "a0:f[b,h,q_idx,kv_idx]; where(ge(q_idx,kv_idx),silu(add(s,a0)),0.0)"
    args = of_backward([*dense()[:3], [matrix(2, 4, 40, 40)], [], masked], wanted=True)
    result = calls.backward_site(True, (0,))(*args)[3]
    assert result.data_ptr() != args[4][0].data_ptr()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_matrix_off_16_bytes_is_copied_and_the_next_call_replayed(number: int, kernels):
    """Whether or not it is the first call."""
    site = calls.forward_site(True)
    for first in (True, False):
        args = dense()
        args[number] = moved(args[number], 1)
        assert args[number].data_ptr() % 16 == 2
        out = site(*args)
        addresses = words(kernels[0])
        assert addresses[number] != args[number].data_ptr() and addresses[number] % 16 == 0
        assert addresses[3] == out.data_ptr()
        assert bool(site.replays) is not first
        args = dense()
        site(*args)
        assert words(kernels[0])[:3] == [x.data_ptr() for x in args[:3]] and recorded(site)


def test_the_operators_find_their_plan_each_time(kernels):
    """They serve calls of any form."""
    arguments: Arguments = calls.FORWARD.bind(*dense(), fast=True)
    for _ in range(2):
        out = calls._attention(arguments)
        assert words(kernels[0])[3] == out.data_ptr()
