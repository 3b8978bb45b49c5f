"""Static calls of the generated code, and calls whose sizes vary, again: a replay hands the kernels
what a first run would, for batches of any rows. Nothing is compiled; a recorder is in place of
kernels.
"""

import functools
from collections.abc import Sequence
from functools import partial

import pytest
import torch

from gdpa_inductor.kernels.cute import bounds, replay
from gdpa_inductor.kernels.cute.backward import biases, table_gradients
from gdpa_inductor.kernels.cute.launcher import WordLauncher
from gdpa_inductor.lowerings.cute import calls
from gdpa_inductor.ops import Arguments

from . import cute_recorders
from .cute_recorders import (
    CAUSAL,
    CTAS,
    KINDS,
    LONGEST,
    NUMBERS,
    STREAM,
    B,
    H,
    Recorder,
    biased,
    check_first_run,
    clears,
    dense,
    jagged,
    matrix,
    named,
    of_backward,
    offsets,
    ranking,
    recorded,
    recorders,
    tensors_of,
    with_,
    words,
)
from .test_cute_plan import moved

kernels = pytest.fixture(autouse=True)(recorders)
cleared = pytest.fixture(autouse=True)(clears)
rooms = pytest.fixture(autouse=True)(cute_recorders.rooms)
ranked = pytest.fixture(autouse=True)(ranking)
KNOWN = pytest.mark.parametrize("known", [True, (H, LONGEST), False], ids=str)


@KNOWN
@pytest.mark.parametrize("kind", KINDS)
def test_a_forward_serves_batches_of_any_rows(kind: str, known, kernels, ranked):
    maker = partial(calls.forward_site, known)
    site = maker()
    for later, rows in enumerate((50, 7, 300)):
        args = KINDS[kind](rows)
        out = site(*args)
        assert recorded(site) == 1 and len(kernels[0].launches) == later + 1
        assert words(kernels[0])[:4] == [x.data_ptr() for x in (*args[:3], out)]
        assert out.shape == (rows if args[0].dim() == 3 else B, *args[0].shape[1:])
        assert len(ranked.launches) == (later + 1 if len(args) > 6 else 0)
        if ranked.launches:
            last = next(x for x in (args[7], args[6]) if x is not None)
            source, order, *numbers = ranked.launches[-1]
            assert [source, *numbers] == [last.data_ptr(), B, STREAM]
            assert order in words(kernels[0])
        check_first_run(maker, args, out, kernels[0])
        del ranked.launches[later + 1 :]


@pytest.mark.parametrize("make", [lambda _: dense(), jagged], ids=["dense", "jagged"])
def test_slices_of_the_values_are_replayed(make, kernels, ranked):
    maker = partial(calls.forward_site, make is not jagged)
    site = maker()
    for rows in (50, 7, 300):
        args = make(rows)
        args[2] = matrix(*args[2].shape[:-1], 600)
        out = site(*args)
        result = kernels[0].launches[-3:]
        places = [args[2].data_ptr(), out.data_ptr()]
        assert [x[2:4] for x in result] == [[y + 400 * i for y in places] for i in range(3)]
        if ranked.launches:
            assert all(ranked.launches[-1][1] in x for x in result)
        assert recorded(site) == 1 and out.shape == args[2].shape
        check_first_run(maker, args, out, kernels[0])


@pytest.mark.parametrize("make", [lambda _: dense(), jagged], ids=["dense", "jagged"])
@pytest.mark.parametrize("width", [64, 600], ids=["whole", "slices"])
def test_row_sums_are_replayed(make, width: int, kernels):
    """The first slice of the values has them."""
    maker = partial(calls.forward_site, False, True)
    site = maker()
    for rows in (50, 7, 300):
        args = with_(make(rows), {5: "t0=relu(s); r=t0; t0"})
        args[2] = matrix(*args[2].shape[:-1], width)
        out, sums = site(*args)
        first, *others = kernels[0].launches[-(-(-width // 256)) :]
        assert first[3:5] == [out.data_ptr(), sums.data_ptr()]
        assert all(sums.data_ptr() not in x for x in others)
        assert sums.dtype == torch.float32 and sums.shape == out.shape[:-1]
        assert recorded(site) == 1
        check_first_run(maker, args, [out, sums], kernels[0])


@pytest.mark.parametrize("known", [(H, LONGEST), False], ids=str)
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "in any order"])
@pytest.mark.parametrize("letters", ["qkv", "kv", "q"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_backward_serves_batches_of_any_rows(
    kind: str, letters: str, ordered: bool, known, kernels, cleared, ranked, rooms
):
    maker = partial(calls.backward_site, known)
    site = maker()
    for later, rows in enumerate((50, 7, 300)):
        args = of_backward(KINDS[kind](rows), letters)
        grad, query, key, value = args[:4]
        del cleared[:], rooms[:]
        results = site(*args, ordered=ordered)
        assert recorded(site) == 1 and len(kernels[1].launches) == later + 1
        # Query, key, value, the gradient of O, sums, gradients of key, value and query, counters.
        addresses = dict(zip("qkvosKVQc", words(kernels[1]), strict=False))
        assert [addresses[x] for x in "qkvo"] == [x.data_ptr() for x in (query, key, value, grad)]
        assert [addresses[x.upper()] for x in letters] == [x.data_ptr() for x in results]
        like = [x for x, letter in zip((query, key, value), "qkv") if letter in letters]
        assert [(x.shape, x.dtype) for x in results] == [(x.shape, x.dtype) for x in like]
        if query.dim() == 4:
            assert [x.stride() for x in results] == [x.stride() for x in like]
        if later:
            sizes = {x.data_ptr(): (x.numel(), x.dtype) for x in rooms}
            assert sizes[addresses["s"]] == (query.numel(), torch.float32)
            count, _ = sizes[addresses["c"]]
            expected = [(addresses["c"], count, STREAM)]
            if not ordered:  # nobody is the first to add
                expected.append((addresses["s"], query.numel(), STREAM))
            if CAUSAL in args:  # query tiles that meet no key are left out
                expected.append((addresses["Q"], query.numel() // 2, STREAM))
            assert sorted(cleared) == sorted(expected)
            if ranked.launches:
                assert sizes[ranked.launches[-1][1]] == (B + 1, torch.int64)
                assert ranked.launches[-1][1] in words(kernels[1])
            else:
                assert count == B * H
        check_first_run(maker, args, results, kernels[1], ordered=ordered)


def test_scalars_and_the_stream_are_of_the_call(kernels, ranked, monkeypatch):
    site, other = calls.forward_site(True), calls.forward_site(False)
    for scalar, stream in ((1, STREAM), (-(1 << 40), 7), (3, 1 << 46)):
        site(*biased(scalar))
        assert words(kernels[0])[-3:] == [scalar, CTAS, stream]
        other(*jagged(50))
        assert words(kernels[0])[-2:] == [CTAS, stream] and ranked.launches[-1][-1] == stream
        later = {1: 7, -(1 << 40): 1 << 46}.get(scalar, stream)
        monkeypatch.setattr(replay, "current_stream", lambda _, stream=later: stream)


def test_offsets_that_were_one_tensor_may_be_two(kernels):
    maker = partial(calls.forward_site, False)
    site = maker()
    site(*jagged(50))
    args = with_(jagged(50), {7: offsets(50)})
    check_first_run(maker, args, site(*args), kernels[0])
    assert {x.data_ptr() for x in args[6:8]} < set(words(kernels[0]))


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
    """In place of the kernels that sum what is stored."""
    recorder = Recorder()
    launcher = functools.cache(lambda _, count, *__: WordLauncher(recorder, count))
    for module in (biases, table_gradients):
        monkeypatch.setattr(module, "word_launcher", launcher)
    monkeypatch.setattr(biases, "GOOD", 0.0)  # as many at a time as there is room for
    return recorder


def launched(site: calls.Site, args: list, recorders: Sequence[Recorder]) -> tuple[list, list]:
    """The results of a call, and by recorder the words of its launches, addresses by tensor."""
    for each in recorders:
        each.launches.clear()
    results = site(*args)
    tensors = tensors_of(args, results)
    return results, [[named(x, tensors) for x in each.launches] for each in recorders]


@pytest.mark.parametrize("room", [1, biases.ROOM], ids=["parts", "at once"])
@pytest.mark.parametrize("name", LEARNED)
def test_gradients_of_biases_are_replayed_with_the_words_of_a_first_run(
    name: str, room: int, kernels, sums, monkeypatch
):
    """Every address as far from where its tensor begins as in the first run, tensor by tensor."""
    monkeypatch.setattr(biases, "ROOM", room)
    site = calls.backward_site(True)
    parts = 1 if room > 1 or name == "of each score" else {"of batches": 2}.get(name, 4)
    runs = []
    for _ in range(2):
        args = learned(name)
        results, run = launched(site, args, (kernels[1], sums))
        assert [x.shape for x in results] == [x.shape for x in (*args[1:4], *args[4])]
        runs.append(run)
    launches = kernels[1].launches
    assert recorded(site) and runs[0] == runs[1]
    assert len(launches) == parts and len(sums.launches) == parts * (name != "of each score")
    for found in runs[1][0]:
        matrices = [*found[:4], *found[5:8], found[MATRICES + NUMBERS + 3 * MATRICES]]
        assert [number for number, _ in matrices] == [1, 2, 3, 0, 6, 7, 5, 4]
    stored = [x[MATRICES - 1] for x in launches]
    assert not sums.launches or stored == [x[0] for x in sums.launches]
    targets = [x[1] - results[3].data_ptr() for x in sums.launches]
    assert targets == [i * (results[3].nbytes // parts) for i in range(len(sums.launches))]


def test_gradients_that_parts_add_to_are_replayed(kernels, sums, monkeypatch):
    """The first part stores, the next ones add to fp32, and the last one to the result."""
    monkeypatch.setattr(biases, "ROOM", 1)
    monkeypatch.setitem(LEARNED, "of positions", ((40, 40), "a0:f[q_idx,kv_idx]; silu(add(s,a0))"))
    site, runs = calls.backward_site(True), []
    for _ in range(2):
        results, run = launched(site, learned("of positions"), (kernels[1], sums))
        runs.append(run)
    assert recorded(site) and runs[0] == runs[1]
    first, *others, last = [x[1:3] for x in sums.launches]
    assert len(others) == 2 and first[0] == first[1]
    assert all(x == first for x in others)
    assert last == [results[3].data_ptr(), first[0]]


TABLES = (
    "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; a2:f[t,h]; a3:i[q_idx,kv_idx]; a4:f[t]; "
    "where(ge(q_idx,kv_idx),silu(add(add(add(s,lookup(a0,add(sub(q_idx,kv_idx),39))),"
    "lookup(a2,a1)),lookup(a4,a3))),0.0)"
)


@pytest.mark.parametrize("room", [1, biases.TABLE_ROOM], ids=["parts", "at once"])
def test_gradients_of_tables_are_replayed_with_the_words_of_a_first_run(
    room: int, kernels, sums, monkeypatch
):
    """Parts of one head have tables at any address."""
    monkeypatch.setattr(biases, "TABLE_ROOM", room)
    site, runs = calls.backward_site(True), []
    for _ in range(2):
        index = torch.zeros(2, 40, 40, dtype=torch.uint8)
        tables = [torch.zeros(4, 79), index, torch.zeros(9, 4), index[0].short(), torch.zeros(9)]
        args = of_backward([*dense()[:3], tables, [], TABLES])
        args[7] = [True] * 3 + [x.is_floating_point() for x in tables]
        results, run = launched(site, args, (kernels[1], sums))
        assert [x.shape for x in results] == [args[i].shape for i in (1, 2, 3)] + [
            x.shape for x in tables[::2]
        ]
        runs.append(run)
    assert recorded(site) and runs[0] == runs[1]
    parts = 4 if room == 1 else 1
    assert [len(x) for x in run] == [parts, 3 * parts + 1 + 3]


JAGGED_TABLES = (
    f"a0:f[h,t]; a1:i[b,q_idx,kv_idx]; a2:f[t,h]; where(ge(q_idx,kv_idx),silu(add("
    f"add(s,lookup(a0,add(sub(q_idx,kv_idx),{LONGEST - 1}))),lookup(a2,a1))),0.0)"
)


@pytest.mark.parametrize("room", [1, biases.TABLE_ROOM], ids=["parts", "at once"])
def test_gradients_of_jagged_tables_are_replayed_for_batches_of_any_rows(
    room: int, kernels, sums, ranked, monkeypatch
):
    monkeypatch.setattr(biases, "TABLE_ROOM", room)
    maker = partial(calls.backward_site, False)
    site, runs = maker(), []
    for rows in (50, 7, 300):
        index = torch.zeros(B, LONGEST, LONGEST, dtype=torch.uint8)
        tables = [torch.zeros(H, 2 * LONGEST - 1), index, torch.zeros(9, H)]
        args = of_backward(jagged(rows, JAGGED_TABLES, tables))
        args[7] = [True] * 3 + [x.is_floating_point() for x in tables]
        if rows != 50:  # the first tensor serves both sides
            args[9] = offsets(rows)
        for one in (site, maker()):
            ranked.launches.clear()
            results, run = launched(one, args, (kernels[1], sums))
            runs.append(run)
        assert runs[-1] == runs[-2]
        assert [x.shape for x in results[3:]] == [x.shape for x in tables[::2]]
    assert recorded(site) == 1


@pytest.mark.parametrize("name", LEARNED)
def test_a_gradient_takes_the_memory_of_a_spare_operand(name: str, sums, monkeypatch):
    """Where the backward runs once, and nothing clears what a kernel still has to read."""
    site, once = calls.backward_site(True, (0,)), [True]
    monkeypatch.setattr(calls, "last_use", lambda: once[0])
    for once[0] in (True, False, True, False):
        args = learned(name)
        bias = args[4][0]
        result = site(*args)[3]
        assert result is not bias and result.shape == bias.shape
        assert (result.data_ptr() == bias.data_ptr()) == once[0]
    assert set(site.replays) == {True, False}


def test_a_masked_gradient_that_is_stored_directly_has_its_own_memory(sums, monkeypatch):
    monkeypatch.setattr(calls, "last_use", lambda: True)
    masked = "a0:f[b,h,q_idx,kv_idx]; where(ge(q_idx,kv_idx),silu(add(s,a0)),0.0)"
    args = of_backward([*dense()[:3], [matrix(2, 4, 40, 40)], [], masked], wanted=True)
    result = calls.backward_site(True, (0,))(*args)[3]
    assert result.data_ptr() != args[4][0].data_ptr()


@pytest.mark.parametrize("number", [0, 1, 2, 6])
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("make", [dense, lambda: jagged(50)], ids=["dense", "jagged"])
def test_what_lies_off_16_bytes_is_copied_and_the_next_call_replayed(
    number: int, first: bool, make, kernels
):
    """Matrices are. Where offsets lie does not matter to the kernel."""
    args = make()
    if number >= len(args):
        return
    maker = partial(calls.forward_site, len(args) == 6)
    site = maker()
    if not first:
        site(*make())
    args[number] = moved(args[number], 1)
    out = site(*args)
    assert bool(recorded(site)) is not first
    if number < 3:
        place = words(kernels[0])[number]
        assert place != args[number].data_ptr() and place % 16 == 0
    check_first_run(maker, args, out, kernels[0])
    args = make()
    check_first_run(maker, args, site(*args), kernels[0])
    assert words(kernels[0])[:3] == [x.data_ptr() for x in args[:3]] and recorded(site) == 1


def test_the_operators_find_their_plan_each_time(kernels):
    """They serve calls of any form."""
    arguments: Arguments = calls.FORWARD.bind(*dense(), fast=True)
    for _ in range(2):
        out = calls._attention(arguments)
        assert words(kernels[0])[3] == out.data_ptr()
