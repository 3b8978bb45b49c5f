"""Which calls of the generated code share a record, and which have none: only those that launch and
do nothing else. Nothing is compiled; a recorder is in place of kernels."""

import functools
import threading
import weakref
from collections.abc import Callable

import pytest
import torch

from gdpa_inductor.kernels.cute import launch, plan, replay
from gdpa_inductor.kernels.cute.backward import jagged_biases
from gdpa_inductor.kernels.cute.backward import launch as backward_launch
from gdpa_inductor.kernels.cute.launcher import Launcher
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.kernels.cute.sm100.config import SIDES
from gdpa_inductor.lowerings.cute import calls
from gdpa_inductor.ops import operands_of
from gdpa_inductor.rejection import GDPAError

from . import cute_recorders
from .cute_kinds import OneKernel, TwoKernels
from .cute_recorders import (
    KINDS,
    LONGEST,
    STREAM,
    D,
    H,
    Recorder,
    biased,
    check_first_run,
    clears,
    dense,
    grouped,
    jagged,
    matrix,
    of_backward,
    offsets,
    projection,
    ranking,
    recorded,
    recorders,
    with_,
    words,
)

kernels = pytest.fixture(autouse=True)(recorders)
cleared = pytest.fixture(autouse=True)(clears)
rooms = pytest.fixture(autouse=True)(cute_recorders.rooms)
ranked = pytest.fixture(autouse=True)(ranking)
BACKWARD = pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])


def maker_of(backward: bool) -> Callable[[], calls.Site]:
    """Of a site whose sizes vary."""
    return functools.partial(calls.backward_site if backward else calls.forward_site, False)


def by_row(rows: int) -> list:
    return jagged(rows, "a0:f[q]; silu(add(s,a0))", (torch.zeros(rows),))


WHOLE = [*(matrix(50, 8, 64) for _ in range(3)), *jagged(50)[3:]]
THREE = torch.tensor([0, 10, 20, 50], dtype=torch.int32)
CHANGES: dict[str, list] = {
    "stride of queries": with_(jagged(50), {0: projection(50)[0]}),
    "stride of keys": with_(jagged(50), {1: projection(50)[1]}),
    "stride of values": with_(jagged(50), {2: matrix(H, 50, D).transpose(0, 1)}),
    "head dim": with_(jagged(50), {0: matrix(50, H, 32), 1: matrix(50, H, 32)}),
    "value dim": with_(jagged(50), {2: matrix(50, H, 32)}),
    "heads": with_(jagged(50), {0: matrix(50, 8, D)}),
    "key heads": grouped(50),
    "sequences": with_(jagged(50), {6: THREE, 7: THREE}),
    "most rows": with_(jagged(50), {8: 30}),
    "most keys": with_(jagged(50), {9: 30}),
    "one row": jagged(1),
    "queries of other rows": with_(jagged(50), {0: matrix(1, H, D)}),
    "keys of other rows": with_(jagged(50), {1: matrix(1, H, D), 2: matrix(1, H, D)}),
    # Their strides are those of the whole.
    "part of the heads": [*(x[:, :4] for x in WHOLE[:3]), *WHOLE[3:]],
    "part of the dims": [*(x[..., :32] for x in WHOLE[:3]), *WHOLE[3:]],
}


@pytest.mark.parametrize("name", CHANGES)
@BACKWARD
def test_a_call_of_another_form_has_its_own_record(name: str, backward: bool, kernels):
    maker, args = maker_of(backward), CHANGES[name]
    site, good = maker(), WHOLE if "part" in name else jagged(50)
    good, args = (of_backward(x) if backward else x for x in (good, args))
    for _ in range(2):
        site(*good)
    for _ in range(2):
        results = site(*args)
        assert recorded(site) == 2
        check_first_run(maker, args, results, kernels[backward])


@pytest.mark.parametrize("make", [by_row, dense], ids=["of an operand", "of a dense call"])
def test_some_rows_are_of_the_form(make: Callable[[int], list], kernels):
    """The strides of an operand are too, and those of a tensor with other dims may follow from its
    rows."""
    site = maker_of(False)()
    for number, rows in enumerate((50, 7, 50, 7)):
        args = make(rows)
        check_first_run(maker_of(False), args, site(*args), kernels[0])
        assert recorded(site) == min(number + 1, 2)


@BACKWARD
def test_where_only_rows_vary_some_of_them_are_of_the_form(backward: bool, kernels):
    """None, one, and as many as an operand has elements along a dim."""
    maker = functools.partial(calls.backward_site if backward else calls.forward_site, (H, 50))
    site, forms = maker(), 0
    for rows, is_new in ((50, True), (51, True), (7, False), (1, True), (50, False), (300, False)):
        args = of_backward(jagged(rows)) if backward else jagged(rows)
        results = site(*args)
        forms += is_new
        assert recorded(site) == forms
        check_first_run(maker_of(backward), args, results, kernels[backward])


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
        of_backward(jagged(50)), with_(of_backward(jagged(50)), {0: matrix(49, H, D)}),
        "the gradient of the output is",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_raises_after_a_good_call(name: str):
    good, wrong, complaint = WRONG[name]
    site = maker_of("gradient" in name)()
    site(*good)
    for _ in range(2):
        with pytest.raises(GDPAError, match=complaint):
            site(*wrong)
    assert recorded(site) == 1
    if "gradient" not in name:
        with pytest.raises(GDPAError, match=complaint):
            launch.forward(operands_of(*wrong), kind=Sm90Config)


PAIRS = torch.tensor([[0, 7], [10, 7], [50, 7]], dtype=torch.int32)
COPIED = {
    "expanded": with_(dense(), {1: matrix(2, 4, 1, 64).expand(2, 4, 40, 64)}),
    "empty": with_(dense(), {0: matrix(2, 4, 0, 64)}),
    "shared": with_(dense(), {0: matrix(1, 4, 40, 64)}),
    "offsets that lie apart": with_(jagged(50), {6: PAIRS[:, 0], 7: PAIRS[:, 0]}),
    "offsets of two dtypes": with_(jagged(50), {6: offsets(50).long()}),
    "an order by torch": jagged(50),
}


@pytest.mark.parametrize("name", COPIED)
@BACKWARD
@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_what_torch_does_is_not_recorded(name: str, backward: bool, static: bool, monkeypatch):
    """Such a form is not recorded again either: that takes longer than the run."""
    if name == "shared" and not backward:
        return  # it is read where it lies
    made: list[replay.Record] = []
    monkeypatch.setattr(calls, "Record", lambda: made.append(replay.Record()) or made[-1])
    monkeypatch.setattr(launch, "_is_ranked", lambda *_: name != "an order by torch")
    site = (calls.backward_site if backward else calls.forward_site)(static)
    for _ in range(3):
        site(*(of_backward(COPIED[name]) if backward else COPIED[name]))
    assert len(made) == 1 and not recorded(site)


def test_a_gradient_of_the_output_that_is_copied_is_not_replayed():
    site = calls.backward_site(True)
    grad, *rest = of_backward(dense())
    site(grad[:, :, :1].expand(grad.shape), *rest)
    assert not recorded(site)


def test_sums_by_torch_are_not_replayed(kernels, monkeypatch):
    monkeypatch.setattr(backward_launch, "total", lambda *_: False)
    site = calls.backward_site(True)
    assert len(site(*of_backward(biased(), wanted=True))) == 4
    assert kernels[1].launches and not recorded(site)


def test_gradients_of_jagged_biases_are_not_recorded(monkeypatch):
    """Torch brings the sums into the form of the operand."""
    done: list[str] = []
    for name in ("add_tiles", "add_rows"):
        run = functools.partial(lambda *_, name, **__: done.append(name), name=name)
        monkeypatch.setattr(jagged_biases, name, run)
    site = calls.backward_site(False)
    for later in range(2):
        result = site(*of_backward(KINDS["jagged, bias"](50), wanted=True))
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


@pytest.mark.parametrize(("blackwell", "count"), [(TwoKernels, len(SIDES)), (OneKernel, 1)])
def test_rows_that_no_sequence_owns_are_cleared_where_kernels_do_not(
    cleared, monkeypatch, blackwell, count
):
    """On Blackwell, all rows of each call. Counters of query tiles are cleared too."""
    find, recorder = plan.plan_of, Recorder()

    def plan_of(o, fast, skip, kind):
        return find(o, fast, skip, blackwell)

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
        counters = [x for x in cleared if x not in sizes]
        assert [x for x in sizes if x in cleared] == (sizes if number else [])
        assert len(counters) == (count == 1 and number > 0)
    assert len(recorder.launches) == 3 * (1 + count)
