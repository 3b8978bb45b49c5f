"""Calls whose sizes vary, again: a record serves batches of any rows, and no call of another form.
Nothing is compiled; a recorder is in place of kernels."""

import functools
import threading
import weakref
from collections.abc import Callable

import pytest
import torch

from gdpa_inductor.kernels.cute import launch, plan, replay
from gdpa_inductor.kernels.cute.backward import jagged_biases
from gdpa_inductor.kernels.cute.backward import launch as backward_launch
from gdpa_inductor.kernels.cute.launcher import Launcher, WordLauncher
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.kernels.cute.sm100.config import SIDES, Sm100Config
from gdpa_inductor.lowerings.cute import calls
from gdpa_inductor.ops import operands_of
from gdpa_inductor.rejection import GDPAError

from .test_cute_plan import Recorder, moved
from .test_cute_replay import (
    CAUSAL,
    CTAS,
    NUMBERS,
    STREAM,
    clears,
    dense,
    matrix,
    of_backward,
    recorded,
    recorders,
    words,
)

kernels = pytest.fixture(autouse=True)(recorders)
cleared = pytest.fixture(autouse=True)(clears)
B, H, D, LONGEST = 2, 4, 64, 40
BIASED = "a0:f[h,q_idx,kv_idx]; mul(silu(add(s,a0)),float(i0))"
BY_ROW = "a0:f[q]; silu(add(s,a0))"


@pytest.fixture(autouse=True)
def ranked(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """In place of the kernel that ranks sequences."""
    recorder = Recorder()
    ranking = functools.cache(lambda *_: WordLauncher(recorder, 4))
    monkeypatch.setattr(launch, "word_launcher", ranking)
    monkeypatch.setattr(launch, "_is_ranked", lambda *_: True)
    return recorder


@pytest.fixture(autouse=True)
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Those of replays."""
    outputs: list[torch.Tensor] = []

    def empty_strided(size, strides, dtype):
        outputs.append(torch.empty_strided(size, strides, dtype=dtype))
        return outputs[-1]

    monkeypatch.setattr(replay, "empty_strided", empty_strided)
    return outputs


def offsets(rows: int) -> torch.Tensor:
    return torch.tensor([0, rows // 3, rows], dtype=torch.int32)


def jagged(rows: int, program: str = "silu(s)", aux: tuple = (), scalars: tuple = ()) -> list:
    cu = offsets(rows)
    lengths = [cu, cu, LONGEST, LONGEST]
    return [*(matrix(rows, H, D) for _ in range(3)), [*aux], [*scalars], program, *lengths]


def projection(rows: int) -> list:
    """Queries, keys and values beside each other, as one product leaves them."""
    whole = matrix(rows, 4 * H, D)
    return [*(whole[:, i * H : (i + 1) * H] for i in range(3)), *jagged(rows, CAUSAL)[3:]]


def biased(rows: int) -> list:
    return jagged(rows, BIASED, (torch.zeros(H, LONGEST, LONGEST),), (rows,))


def by_row(rows: int) -> list:
    return jagged(rows, BY_ROW, (torch.zeros(rows),))


def apart(rows: int) -> list:
    """As many keys for each query, but other offsets."""
    other = torch.tensor([0, rows // 2, rows], dtype=torch.int64)
    return [*jagged(rows)[:6], other, other.clone(), LONGEST, 30]


def grouped(rows: int) -> list:
    return [matrix(rows, H, D), matrix(rows, 2, D), matrix(rows, 2, D), *jagged(rows)[3:]]


KINDS: dict[str, Callable[[int], list]] = {
    "jagged": jagged,
    "projection": projection,
    "grouped": grouped,
    "biased": biased,
    "queries": lambda rows: [
        matrix(rows, H, D), *dense()[1:], offsets(rows), None, LONGEST, 0
    ],
    "keys": lambda rows: [
        dense()[0], *jagged(rows)[1:3], [], [], CAUSAL, None, offsets(rows), 0, LONGEST
    ],
    "apart": apart,
}  # fmt: skip
KIND = pytest.mark.parametrize("kind", KINDS)
STATIC = pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])


def order_of(matrices: int, args: list) -> int:
    """Which word is the address of the order."""
    return matrices + NUMBERS + 3 * matrices + sum(x is not None for x in args[6:8])


def behind(found: list[int], matrices: int, args: list) -> list[int]:
    """The words without the addresses of rooms and matrices."""
    number = order_of(matrices, args)
    return [*found[matrices:number], *found[number + 1 :]]


@KIND
@STATIC
def test_a_forward_serves_batches_of_any_rows(kind: str, static: bool, kernels, ranked):
    site = calls.forward_site(static)
    for rows in (50, 7, 300):
        args = KINDS[kind](rows)
        out = site(*args)
        assert recorded(site) == 1 and len(ranked.launches) == len(kernels[0].launches)
        result, number = words(kernels[0]), order_of(4, args)
        assert result[:4] == [x.data_ptr() for x in (*args[:3], out)]
        last = next(x for x in (args[7], args[6]) if x is not None)
        assert ranked.launches[-1] == [last.data_ptr(), result[number], B, STREAM]
        assert launch.forward(operands_of(*args), out=out, kind=Sm90Config) is out
        assert behind(words(kernels[0]), 4, args) == behind(result, 4, args)
        assert out.shape == (rows if args[0].dim() == 3 else B, *args[0].shape[1:])


def test_slices_of_the_values_serve_batches_of_any_rows(kernels, ranked):
    site, count = calls.forward_site(False), 3
    for rows in (50, 7, 300):
        args = with_(jagged(rows), {2: matrix(rows, H, 600)})
        out = site(*args)
        assert recorded(site) == 1 and out.shape == (rows, H, 600)
        result = kernels[0].launches[-count:]
        places = [args[2].data_ptr(), out.data_ptr()]
        assert [x[2:4] for x in result] == [[y + 400 * i for y in places] for i in range(count)]
        assert {x[order_of(4, args)] for x in result} == {ranked.launches[-1][1]}
    assert len(kernels[0].launches) == 3 * count


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "in any order"])
@KIND
def test_a_backward_serves_batches_of_any_rows(
    kind: str, ordered: bool, kernels, cleared, ranked, rooms
):
    site = calls.backward_site(False)
    for rows in (50, 7, 300):
        args = of_backward(KINDS[kind](rows))
        grad, query, key, value = args[:4]
        del cleared[:], rooms[:]
        results = site(*args, ordered=ordered)
        assert recorded(site) == 1 and len(ranked.launches) == len(kernels[1].launches)
        result = words(kernels[1])
        addresses = dict(zip("qkvosKVQc", result, strict=False))
        assert [addresses[x] for x in "qkvo"] == [x.data_ptr() for x in (query, key, value, grad)]
        assert [addresses[x] for x in "QKV"] == [x.data_ptr() for x in results]
        assert [(x.shape, x.dtype) for x in results] == [(x.shape, x.dtype) for x in args[1:4]]
        assert all(x.is_contiguous() for x in results)
        if rooms:  # a replay
            sizes = {x.data_ptr(): (x.numel(), x.dtype) for x in rooms}
            assert sizes[addresses["s"]] == (query.numel(), torch.float32)
            assert sizes[result[order_of(9, args[1:7] + args[8:])]] == (B + 1, torch.int64)
            expected = [(addresses["c"], sizes[addresses["c"]][0], STREAM)]
            if not ordered:
                expected.append((addresses["s"], query.numel(), STREAM))
            if CAUSAL in args or kind == "keys":
                expected.append((addresses["Q"], query.numel() // 2, STREAM))
            assert sorted(cleared) == sorted(expected)
        calls.backward_site(False)(*args, ordered=ordered)
        forward = args[1:7] + args[8:]
        assert behind(words(kernels[1]), 9, forward) == behind(result, 9, forward)


def test_offsets_that_were_one_tensor_may_be_two(kernels):
    site = calls.forward_site(False)
    site(*jagged(50))
    args = jagged(50)
    args[7] = args[7].clone()
    site(*args)
    result = words(kernels[0])
    number = order_of(4, args)
    assert result[number - 2 : number] == [x.data_ptr() for x in args[6:8]]


def test_the_stream_is_of_the_call(kernels, ranked, monkeypatch):
    site = calls.forward_site(False)
    site(*jagged(50))
    for stream in (7, 1 << 46):
        monkeypatch.setattr(replay, "current_stream", lambda _, found=stream: found)
        site(*jagged(50))
        assert words(kernels[0])[-2:] == [CTAS, stream] and ranked.launches[-1][-1] == stream


def with_(args: list, changes: dict[int, object]) -> list:
    return [changes.get(number, x) for number, x in enumerate(args)]


THREE = torch.tensor([0, 10, 20, 50], dtype=torch.int32)
CHANGES: dict[str, Callable[[], list]] = {
    "stride of queries": lambda: with_(jagged(50), {0: projection(50)[0]}),
    "stride of keys": lambda: with_(jagged(50), {1: projection(50)[1]}),
    "stride of values": lambda: with_(jagged(50), {2: matrix(H, 50, D).transpose(0, 1)}),
    "head dim": lambda: with_(jagged(50), {0: matrix(50, H, 32), 1: matrix(50, H, 32)}),
    "value dim": lambda: with_(jagged(50), {2: matrix(50, H, 32)}),
    "heads": lambda: with_(jagged(50), {0: matrix(50, 8, D)}),
    "key heads": lambda: grouped(50),
    "sequences": lambda: with_(jagged(50), {6: THREE, 7: THREE}),
    "most rows": lambda: with_(jagged(50), {8: 30}),
    "most keys": lambda: with_(jagged(50), {9: 30}),
    "one row": lambda: jagged(1),
    "queries of other rows": lambda: with_(jagged(50), {0: matrix(1, H, D)}),
    "keys of other rows": lambda: with_(jagged(50), {1: matrix(1, H, D), 2: matrix(1, H, D)}),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_call_of_another_form_has_its_own_record(name: str, backward: bool, kernels):
    maker, matrices = [(calls.forward_site, 4), (calls.backward_site, 9)][backward]
    site, recorder = maker(False), kernels[backward]

    def given(args: list) -> list:
        return of_backward(args) if backward else args

    for _ in range(2):
        site(*given(jagged(50)))
    args = CHANGES[name]()
    for later in range(2):
        site(*given(args))
        result = behind(words(recorder), matrices, args)
        assert recorded(site) == 2, later
        maker(False)(*given(args))
        assert behind(words(recorder), matrices, args) == result


@pytest.mark.parametrize("part", [(slice(4), slice(64)), (slice(8), slice(32))], ids=str)
def test_parts_of_one_matrix_are_other_forms(part: tuple, kernels):
    """Their strides are equal."""
    site, (heads, dims) = calls.forward_site(False), part
    whole = [matrix(50, 8, 64) for _ in range(3)]
    for later, inputs in enumerate((whole, [x[:, heads, dims] for x in whole])):
        args = [*inputs, *jagged(50)[3:]]
        site(*args)
        result = behind(words(kernels[0]), 4, args)
        assert recorded(site) == later + 1
        calls.forward_site(False)(*args)
        assert behind(words(kernels[0]), 4, args) == result


def of_rows(rows: int) -> list:
    return [*(matrix(2, 4, rows, 64) for _ in range(3)), [], [], "silu(s)"]


@pytest.mark.parametrize("make", [by_row, of_rows], ids=["of an operand", "of a dense call"])
def test_some_rows_are_of_the_form(make: Callable[[int], list], kernels):
    """The strides of an operand are too, and those of a tensor with other dims may follow from its
    rows."""
    site = calls.forward_site(False)
    for number, rows in enumerate((50, 7, 50, 7)):
        args = make(rows)
        out = site(*args)
        result = words(kernels[0])
        launch.forward(operands_of(*args), out=out, kind=Sm90Config)
        part = 4 if make is of_rows else order_of(4, args) + 1
        assert words(kernels[0])[part:] == result[part:]
        assert recorded(site) == min(number + 1, 2)


# A good call, one that does not fit it, and what is said of that.
WRONG: dict[str, tuple[list, list, str]] = {
    "rows of an operand": (
        by_row(50), with_(by_row(70), {3: by_row(50)[3]}), "dimension q of a0: 50 and 70"
    ),
    "rows of values": (
        jagged(50), with_(jagged(50), {2: matrix(49, H, D)}), "length of key and value"
    ),
    "sequences of keys": (jagged(50), with_(jagged(50), {7: THREE}), "batch of cu_seqlens_k"),
    "rows of a gradient": (
        of_backward(jagged(50)), [matrix(49, H, D), *of_backward(jagged(50))[1:]],
        "the gradient of the output is",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_raises_after_a_good_call(name: str):
    good, wrong, complaint = WRONG[name]
    site = (calls.backward_site if "gradient" in name else calls.forward_site)(False)
    site(*good)
    for _ in range(2):
        with pytest.raises(GDPAError, match=complaint):
            site(*wrong)
    assert recorded(site) == 1
    if "gradient" not in name:
        with pytest.raises(GDPAError, match=complaint):
            launch.forward(operands_of(*wrong), kind=Sm90Config)


@pytest.mark.parametrize("number", [0, 1, 2, 6])
def test_what_lies_off_16_bytes_is_not_replayed(number: int, kernels):
    """Matrices are copied. Where offsets lie does not matter to the kernel."""
    site = calls.forward_site(False)
    site(*jagged(50))
    args = jagged(50)
    args[number] = moved(args[number], 1)
    out = site(*args)
    result = words(kernels[0])
    launch.forward(operands_of(*args), out=out, kind=Sm90Config)
    assert behind(words(kernels[0]), 4, args)[:-4] == behind(result, 4, args)[:-4]
    assert number > 2 or result[number] != args[number].data_ptr()
    site(*jagged(50))
    assert recorded(site) == 1


PAIRS = torch.tensor([[0, 7], [10, 7], [50, 7]], dtype=torch.int32)
COPIED = {
    "offsets that lie apart": {6: PAIRS[:, 0], 7: PAIRS[:, 0]},
    "offsets of two dtypes": {6: offsets(50).long()},
    "an order by torch": {},
}


@pytest.mark.parametrize("name", COPIED)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_what_torch_does_is_not_recorded(name: str, backward: bool, monkeypatch):
    monkeypatch.setattr(launch, "_is_ranked", lambda *_: name != "an order by torch")
    site = (calls.backward_site if backward else calls.forward_site)(False)
    args = with_(jagged(50), COPIED[name])
    for _ in range(2):
        site(*(of_backward(args) if backward else args))
    assert not recorded(site)


def test_gradients_of_jagged_biases_are_not_recorded(monkeypatch):
    """Torch brings the sums into the form of the operand."""
    done: list[str] = []
    for name in ("add_tiles", "add_rows"):
        run = functools.partial(lambda *_, name, **__: done.append(name), name=name)
        monkeypatch.setattr(jagged_biases, name, run)
    site = calls.backward_site(False)
    for later in range(2):
        result = site(*of_backward(biased(50), wanted=True))
        assert result[3].shape == (H, LONGEST, LONGEST) and len(done) == later + 1
    assert not recorded(site)


def test_forms_are_bounded(monkeypatch, kernels):
    monkeypatch.setattr(calls, "MOST", 3)
    site = calls.forward_site(False)
    for longest in (8, 16, 24, 32, 40, 8, 40):
        site(*with_(jagged(50), {8: longest}))
        assert words(kernels[0])[4 + 4] == longest and len(site.replays) <= 3


def test_two_threads_may_drop_the_oldest_form(monkeypatch):
    monkeypatch.setattr(calls, "MOST", 1)
    site = calls.forward_site(False)
    other = threading.Thread(target=site._keep, args=("other", None))

    class Replays(dict):
        def __delitem__(self, form):
            if other.ident is None:
                other.start()
                other.join(0.2)  # it waits for us, or drops the form first
            super().__delitem__(form)

    site.replays = Replays(oldest=None)
    site._keep("own", None)
    other.join()
    assert list(site.replays) == ["other"]


def test_a_record_holds_no_tensor():
    site = calls.forward_site(False)
    args = jagged(50)
    tensors = [weakref.ref(x) for x in (site(*args), *args[:3], args[6])]
    del args
    assert recorded(site) and not any(x() is not None for x in tensors)


def test_rows_that_no_sequence_owns_are_cleared_where_kernels_do_not(kernels, cleared, monkeypatch):
    """On Blackwell, all rows of each call."""
    find, recorder = plan.plan_of, Recorder()

    def plan_of(o, fast, skip, kind):
        return find(o, fast, skip, Sm100Config)

    for module in (launch, backward_launch):
        monkeypatch.setattr(module, "plan_of", plan_of)
    launcher = functools.cache(lambda config: Launcher(recorder, config))
    monkeypatch.setattr(launch, "launcher", launcher)
    forward, backward = calls.forward_site(False), calls.backward_site(False)
    for number, rows in enumerate((50, 7, 300)):
        del cleared[:]
        results = [forward(*jagged(rows)), *backward(*of_backward(jagged(rows)))]
        assert recorded(forward) and recorded(backward)
        sizes = [(x.data_ptr(), x.numel() // 2, STREAM) for x in results]
        assert sorted(cleared) == (sorted(sizes) if number else [])
    assert len(recorder.launches) == 3 * (1 + len(SIDES))
