"""Launch plans of the CuTe kernels: when two calls share one, and what a kernel is handed then.
Nothing is compiled."""

import dataclasses
import functools
import threading

import pytest
import torch

from gdpa_inductor.kernels.cute import form, launch, plan
from gdpa_inductor.kernels.cute.launch import longest_first
from gdpa_inductor.kernels.cute.launcher import Launcher
from gdpa_inductor.kernels.cute.replay import Record
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.kernels.cute.sm100.config import Sm100Config
from gdpa_inductor.operands import Operands, dtype_name, output_shape, score_shape
from gdpa_inductor.ops import operands_of
from gdpa_inductor.rejection import GDPAError

from .cute_cases import BF16, F16
from .cute_recorders import BIAS, Recorder

BY_ROW = "a0:f[q]; silu(add(s,a0))"
Given = Operands[torch.Tensor]


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict:
    """Recorders by configuration; no plan is left of another test."""
    entries: dict = {}

    def compiled(config):
        return entries.setdefault(config, Recorder())

    monkeypatch.setattr(launch, "compiled", compiled)
    launcher = functools.cache(lambda config: Launcher(compiled(config), config))
    monkeypatch.setattr(launch, "launcher", launcher)
    monkeypatch.setattr(plan, "PLANS", {})
    return entries


forward = functools.partial(launch.forward, ctas=3, stream=5)


def matrices(*shape: int, dtype: torch.dtype = BF16) -> list[torch.Tensor]:
    return [torch.randn(shape).to(dtype) for _ in range(3)]


def dense(rows: int = 40, dtype: torch.dtype = BF16) -> Given:
    return operands_of(*matrices(2, 4, rows, 64, dtype=dtype), [], [], "silu(s)")


def biased() -> Given:
    return operands_of(*matrices(2, 4, 40, 64), [torch.randn(4, 40, 40)], [7], BIAS)


def jagged(**changes) -> Given:
    cu = torch.tensor([0, 10, 50], dtype=torch.int32)
    o = operands_of(*matrices(50, 4, 64), [], [], "silu(s)", cu, cu.clone(), 40, 40)
    return dataclasses.replace(o, **changes)


def last(kernels: dict) -> list[int]:
    (kernel,) = kernels.values()
    return kernel.launches[-1]


def words_of(o: Given, out: torch.Tensor, order: torch.Tensor | None = None) -> list[int]:
    """What a kernel takes, in the order of `compiler.example`, of operands that need no copy and
    have no extent of one."""
    read = (o.query, o.key, o.value, out)
    dense = o.query.dim() == 4
    sequences = o.query.shape[0] if dense else len(o.cu_seqlens_q) - 1
    sides = [x.shape[2] for x in read[:2]] if dense else [o.max_seqlen_q, o.max_seqlen_k]
    totals = [x.shape[2 if dense else 0] for x in read[:2]]
    steps = [x.stride()[:3] if dense else (8, x.stride(1), x.stride(0)) for x in read]
    lists = [*o.lengths[:2], order]
    aux = [[x.data_ptr(), 0, *x.stride(), 0, 0] for x in o.aux]  # b, h, q_idx, kv_idx, q, k
    return [
        *[x.data_ptr() for x in read],
        *[sequences, 4, 4, 4, *sides, *totals, sequences],
        *[n for step in steps for n in step],
        *[x.data_ptr() for x in lists if x is not None],
        *[word for words in aux for word in words],
        *o.scalars,
        *[3, 5],
    ]


def test_jagged_sequences_are_dealt_longest_first_each_time(kernels):
    for _ in range(2):
        o, order = jagged(), torch.tensor([1, 0])
        out = forward(o, order=order)
        assert last(kernels) == words_of(o, out, order)
    (config,) = kernels
    assert longest_first(o, config, 0, Record(fails=True)).tolist() == [1, 0, 0]


def test_scalars_and_ctas_and_streams_are_of_the_call(kernels):
    o = biased()
    for scalar, ctas, stream in ((1, 2, 3), (-(1 << 40), 132, 1 << 46), (3, 1, 0)):
        launch.forward(dataclasses.replace(o, scalars=[scalar]), ctas=ctas, stream=stream)
        assert last(kernels)[-3:] == [scalar, ctas, stream]
    assert len(plan.PLANS) == 1


OTHER = torch.empty(2, 40, 4, 64, dtype=BF16).transpose(1, 2)  # an output of other strides
CALLS = {  # operands and outputs of calls, how many plans there are then
    "alike": ([(dense(), None) for _ in range(3)], 1),
    "alike, with a bias": ([(biased(), None) for _ in range(3)], 1),
    "two forms of one configuration": ([(dense(n), None) for n in (40, 70, 70, 40, 70)], 2),
    "outputs anywhere": ([(dense(), out) for out in (None, OTHER, None)], 1),
    "more forms than are kept": ([(dense(n), None) for n in (8, 16, 24, 32, 40, 8, 40)], 3),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_takes_what_is_of_its_call(name: str, monkeypatch, kernels):
    """Whether or not there is a plan. Forms of one configuration share a launcher, which holds the
    words of one."""
    monkeypatch.setattr(plan, "MOST", 3)
    each, plans = CALLS[name]
    for o, out in each:
        stored = forward(o, out=out)
        assert last(kernels) == words_of(o, stored) and len(plan.PLANS) <= 3
    assert (len(plan.PLANS), len(kernels)) == (plans, 1)


def test_threads_do_not_mix_their_words(kernels):
    arguments, failed = [dense(40), dense(70)], []
    outs = [torch.empty_like(o.query) for o in arguments]

    def work(o: Given, out: torch.Tensor) -> None:
        try:
            for _ in range(200):
                forward(o, out=out)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=x) for x in zip(arguments, outs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (kernel,) = kernels.values()
    expected = [words_of(*x) for x in zip(arguments, outs)]
    assert not failed and len(kernel.launches) == 400
    assert all(kernel.launches.count(x) == 200 for x in expected)


def test_a_thread_may_clear_the_words_that_another_asks_for(kernels):
    class Cleared(dict):
        """Another thread clears the words as soon as there are some."""

        def __setitem__(self, known, words):
            pass

    o = dense()
    object.__setattr__(plan.plan_of(o, True, True, None), "words", Cleared())
    out = forward(o)
    assert last(kernels) == words_of(o, out)


def moved(x: torch.Tensor, elements: int) -> torch.Tensor:
    """The same, so many elements after a multiple of 16 bytes."""
    room = torch.empty(x.numel() + elements, dtype=x.dtype)
    room[elements:] = x.flatten()
    return room[elements:].view(x.shape)


def swapped(x: torch.Tensor) -> torch.Tensor:
    """The same, with other strides."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


DENSE, BIASED, JAGGED = dense(), biased(), jagged()
CU = JAGGED.cu_seqlens_q
CHANGES = {
    "shape": (DENSE, {"query": torch.randn(2, 4, 41, 64).to(BF16)}),
    "batch of one": (DENSE, {"key": DENSE.key[:1], "value": DENSE.value[:1]}),
    "query stride": (DENSE, {"query": swapped(DENSE.query)}),
    "value stride": (DENSE, {"value": swapped(DENSE.value)}),
    "key alignment": (DENSE, {"key": moved(DENSE.key, 1)}),
    "dtype": (DENSE, {name: getattr(DENSE, name).to(F16) for name in ("query", "key", "value")}),
    "program": (DENSE, {"program": operands_of(1, 2, 3, [], [], "relu(s)").program}),
    "more scalars": (DENSE, {"scalars": [1]}),
    "aux stride": (BIASED, {"aux": [BIASED.aux[0].mT.contiguous().mT]}),
    "aux dtype": (BIASED, {"aux": [BIASED.aux[0].to(BF16)]}),
    "aux alignment": (BIASED, {"aux": [moved(BIASED.aux[0], 2)]}),
    "offsets of both": (JAGGED, {x: CU.long() for x in ("cu_seqlens_q", "cu_seqlens_k")}),
    "offsets of queries": (JAGGED, {"cu_seqlens_q": CU.long()}),
    "sequences": (JAGGED, dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), CU[:2])),
    "most rows": (JAGGED, {"max_seqlen_q": 30}),
    "most keys": (JAGGED, {"max_seqlen_k": 30}),
    "no rows": (JAGGED, {x: getattr(JAGGED, x)[:0] for x in ("query", "key", "value")}),
    "one row": (JAGGED, {x: getattr(JAGGED, x)[:1] for x in ("query", "key", "value")}),
    "stride of rows": (JAGGED, {"key": torch.randn(50, 8, 64).to(BF16)[:, :4]}),
    "one side": (
        JAGGED,
        {"cu_seqlens_q": None, "max_seqlen_q": 0, "query": torch.randn(2, 4, 9, 64).to(BF16)},
    ),
}
OPTIONS = (True, True, Sm90Config)


CACHES = ("cache", "words", "example")


def facts(found: plan.LaunchPlan) -> dict:
    fields = dataclasses.fields(found)
    return {x.name: getattr(found, x.name) for x in fields if x.name not in CACHES}


def form_of(o: Given, *options) -> form.Form:
    return form.Form(*form.key_of(o, *options))


def built(o: Given, *options) -> plan.LaunchPlan:
    return plan.build_plan(form_of(o, *options))


@pytest.fixture(params=CHANGES)
def changed(request: pytest.FixtureRequest) -> tuple[Given, Given]:
    base, changes = CHANGES[request.param]
    return base, dataclasses.replace(base, **changes)


def test_another_form_has_another_plan(changed):
    base, other = changed
    first, second = plan.plan_of(base, *OPTIONS), plan.plan_of(other, *OPTIONS)
    assert first is not second
    assert facts(second) == facts(built(other, *OPTIONS))
    assert plan.plan_of(base, *OPTIONS) is first and plan.plan_of(other, *OPTIONS) is second


@pytest.mark.parametrize(
    "options",
    [(False, True, Sm90Config), (True, False, Sm90Config), (True, True, Sm100Config)],
    ids=["fast", "skip", "kind"],
)
def test_other_options_have_another_plan(options):
    assert plan.plan_of(DENSE, *OPTIONS) is not plan.plan_of(DENSE, *options)
    assert facts(plan.plan_of(DENSE, *options)) == facts(built(DENSE, *options))


def test_a_plan_says_of_a_form_what_holds_for_the_call(changed):
    """It is built from meta tensors. Whatever is read of the tensors of the call is the same."""
    _, o = changed
    result = plan.plan_of(o, *OPTIONS)
    assert result.config == plan.config_for(o, Sm90Config, True, True)
    assert result.copied == tuple(not plan.fits(x) for x in (o.query, o.key, o.value))
    pairs = zip((o.query, o.key, o.value), result.copied, strict=True)
    read = [torch.empty(x.shape) if copied else x for x, copied in pairs]
    assert result.strides == tuple(step for x in read for step in plan.strides(x))
    assert result.output_of(o) == output_shape(o)
    batch, heads, *sides = score_shape(o)
    assert result.sizes == (batch, heads, o.key.shape[1], o.value.shape[1], *sides)


def test_the_example_of_a_form_has_the_form(changed):
    result = form_of(changed[1], *OPTIONS)
    again = form_of(form.example_of(result), *OPTIONS)
    assert again._replace(tensors=result.tensors) == result
    for field in (0, 2):  # all but the device
        assert again.tensors[field::3] == result.tensors[field::3]


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 40, 50])
@pytest.mark.parametrize("sizes", [(2, 3), (40,), (50, 4), (51,)])
def test_a_form_tells_rows_apart_that_equal_a_size(rows: int, sizes: tuple[int, ...]):
    """Of the others it tells 0, 1 and several. Those of the values are compared with the keys'."""
    o = dataclasses.replace(rows_of(JAGGED, rows), aux=[torch.randn(sizes)])
    result = form.example_of(form_of(o, *OPTIONS))
    query, key, value = result.query, result.key, result.value
    shorter = dataclasses.replace(o, value=torch.randn(rows + 1, 4, 64).to(BF16))
    assert [size == rows for size in sizes] == [size == key.shape[0] for size in sizes]
    assert min(rows, 2) == min(query.shape[0], 2) and query.shape == key.shape == value.shape
    example = form.example_of(form_of(shorter, *OPTIONS))
    assert example.value.shape[0] != example.key.shape[0]


def test_a_plan_is_built_from_its_key_alone(monkeypatch):
    """What is computed for a plan, early or late, gets the form, the plan and hashable values."""

    def tensors(value) -> bool:
        parts = value if isinstance(value, (tuple, list)) else ()
        return isinstance(value, (torch.Tensor, Operands)) or any(map(tensors, parts))

    arguments, build = [], plan.build_plan
    monkeypatch.setattr(plan, "build_plan", lambda *x: arguments.append(x) or build(*x))
    result = plan.plan_of(biased(), *OPTIONS)
    ((key,),) = arguments
    assert hash(key) == hash(next(iter(plan.PLANS))) and not tensors(key)
    meta = [x for x in result.example.flat() if isinstance(x, torch.Tensor)]
    assert meta and all(x.is_meta for x in meta)
    assert result.once(lambda own, number: (own, number), 3) == (result, 3)
    with pytest.raises(TypeError, match="unhashable"):
        result.once(len, [3])


def rows_of(o: Given, count: int) -> Given:
    """The same with so many rows in all."""
    query, key, value = (torch.randn(count, 4, 64).to(BF16) for _ in range(3))
    return dataclasses.replace(o, query=query, key=key, value=value)


def test_batches_of_other_rows_share_a_plan(kernels):
    """The rows of a jagged side are of the call."""
    for count in (50, 7, 2, 1000):
        o, order = rows_of(JAGGED, count), torch.tensor([1, 0])
        out = forward(o, order=order)
        assert out.shape == (count, 4, 64) and last(kernels) == words_of(o, out, order)
    assert len(plan.PLANS) == 1


def test_equal_forms_share_a_plan():
    """Whatever the addresses, the values, and the spelling of the program."""
    spelled = operands_of(*matrices(2, 4, 40, 64), [], [], " silu( s )")
    assert plan.plan_of(dense(), *OPTIONS) is plan.plan_of(spelled, *OPTIONS)
    assert plan.plan_of(JAGGED, *OPTIONS) is plan.plan_of(
        jagged(cu_seqlens_q=torch.tensor([0, 40, 41], dtype=torch.int32)), *OPTIONS
    )


WRONG = {
    "key dtype": (DENSE, {"key": DENSE.key.half()}, "query and key differ in dtype"),
    "value dtype": (DENSE, {"value": DENSE.value.half()}, "value torch.float16"),
    "head dim": (DENSE, {"key": DENSE.key[..., :56]}, "head dim of query and key"),
    "value dim": (DENSE, {"value": DENSE.value[..., :60]}, "a head dim of 60"),
    "length": (DENSE, {"value": DENSE.value[:, :, 1:]}, "length of key and value"),
    "heads": (DENSE, {"key": DENSE.key[:, :3]}, "no multiple of 3 key heads"),
    "value heads": (DENSE, {"value": DENSE.value[:, :3]}, "no multiple of 3 value heads"),
    "fewer heads": (DENSE, {"query": DENSE.query[:, :2]}, "2 query heads are no multiple of 4 key"),
    "batch": (DENSE, {"key": torch.cat([DENSE.key] * 2)}, "batch of key: 4 and 2"),
    "layout": (DENSE, {"query": DENSE.query[0]}, "query must be"),
    "another device": (DENSE, {"key": torch.empty_like(DENSE.key, device="meta")}, "operands are"),
    "device of a number": (
        operands_of(*matrices(2, 4, 40, 64), [torch.ones(())], [], "a0:f[]; silu(mul(s,a0))"),
        {"aux": [torch.ones((), device="meta")]},
        "operands on several devices",
    ),
    "too many operands": (DENSE, {"aux": [DENSE.query]}, "declares 0 operands"),
    "no operand": (BIASED, {"aux": []}, "0 and 1 are given"),
    "no scalar": (BIASED, {"scalars": []}, "1 and 0 are given"),
    "size of an operand": (BIASED, {"aux": [BIASED.aux[0][:, 1:]]}, "dimension q_idx of a0"),
    "kind of an operand": (BIASED, {"aux": [BIASED.aux[0].int()]}, "declares kind f"),
    "offsets": (JAGGED, {"cu_seqlens_k": CU[:2]}, "batch of cu_seqlens_k"),
    "dtype of offsets": (JAGGED, {"cu_seqlens_k": CU.short()}, "int32 or int64"),
    "shape of offsets": (JAGGED, {"cu_seqlens_k": CU[None]}, "int32 or int64"),
    "rows of values": (JAGGED, {"value": JAGGED.value[:49]}, "length of key and value"),
    "rows of an operand": (
        dataclasses.replace(
            JAGGED, aux=[torch.randn(50)], program=operands_of(1, 2, 3, [], [], BY_ROW).program
        ),
        {"aux": [torch.randn(49)]},
        "dimension q of a0",
    ),
    "no offsets": (JAGGED, {"cu_seqlens_k": None}, "key must be"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_raises_after_a_good_one(name: str, kernels):
    good, changes, complaint = WRONG[name]
    forward(good)
    for _ in range(2):
        with pytest.raises(GDPAError, match=complaint):
            forward(dataclasses.replace(good, **changes))
    assert len(last(kernels)) and len(plan.PLANS) == 1


def test_a_plan_holds_no_tensor():
    result = plan.plan_of(biased(), *OPTIONS)
    assert not any(isinstance(x, torch.Tensor) for x in facts(result).values())


@pytest.mark.parametrize("far", [0, 1])
def test_offsets_of_two_dtypes_are_read_in_one(far: int):
    """That of the keys', from a copy, in each call."""
    dtypes = [torch.int64, torch.int32]
    cu_k = CU.to(dtypes[far])
    for last_row in (50, 49):
        cu_q = torch.tensor([0, 10, last_row], dtype=dtypes[1 - far])
        o = jagged(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
        result = plan.plan_of(o, *OPTIONS)
        read = result.readable(o)
        assert read.cu_seqlens_q.dtype == cu_k.dtype
        assert read.cu_seqlens_q.tolist() == [0, 10, last_row]
        assert read.cu_seqlens_k is cu_k and result.config.offsets == dtype_name(cu_k.dtype)
    assert len(plan.PLANS) == 1


def test_what_cannot_be_read_in_place_is_copied_each_time():
    for _ in range(2):
        o = dense()
        o = dataclasses.replace(o, key=moved(o.key, 3), value=o.value[:1].expand(2, -1, -1, -1))
        result = plan.plan_of(o, *OPTIONS)
        read = result.readable(o)
        assert result.copied == (False, True, True) and read.query is o.query
        assert torch.equal(read.key, o.key) and torch.equal(read.value, o.value)
        assert all(plan.fits(x) for x in (read.key, read.value))
        assert result.strides[3:] == (*plan.strides(read.key), *plan.strides(read.value))
    assert len(plan.PLANS) == 1


@pytest.mark.parametrize(
    ("bias", "tiled"),
    [
        (torch.randn(2, 4, 40, 48).to(BF16), 0),
        (torch.randn(2, 4, 40, 56).to(BF16)[..., :48], 0),
        (torch.randn(1, 4, 40, 48).to(BF16).expand(2, -1, -1, -1), None),
        (torch.randn(2, 4, 40, 49).to(BF16)[..., :48], None),
        (torch.randn(2, 4, 48, 40).to(BF16).mT, None),
        (torch.randn(2, 4, 40, 48), None),
    ],
    ids=["whole", "in wider rows", "expanded", "rows not aligned", "transposed", "fp32"],
)
def test_which_biases_come_in_tiles(bias: torch.Tensor, tiled: int | None):
    query, (key, value, _) = matrices(2, 4, 40, 64)[0], matrices(2, 4, 48, 64)
    o = operands_of(query, key, value, [bias], [], "a0:f[b,h,q_idx,kv_idx]; silu(add(s,a0))")
    assert plan.plan_of(o, *OPTIONS).config.tiled == tiled


def test_lengths_that_make_too_many_tiles_are_refused(kernels):
    """Of a jagged call whose bound is far above its rows."""
    with pytest.raises(GDPAError, match="too many tiles"):
        forward(jagged(max_seqlen_q=1 << 36, max_seqlen_k=1 << 36))
    assert not kernels


@pytest.mark.parametrize("side", ["cu_seqlens_q", "cu_seqlens_k"])
def test_offsets_that_lie_apart_are_gathered(side, kernels):
    """Kernels read them one behind the other."""
    pairs = torch.tensor([[0, 7], [10, 7], [50, 7]], dtype=torch.int32)
    o = jagged(**{side: pairs[:, 0]})
    read = plan.plan_of(o, True, True, None).readable(o)
    assert all(x.is_contiguous() and x.tolist() == [0, 10, 50] for x in read.lengths[:2])


@pytest.mark.parametrize(
    ("program", "jagged", "first"),
    [
        ("a0:f[h,q_idx,kv_idx]; silu(add(s,a0))", False, True),
        ("a0:f[h,q_idx,kv_idx]; silu(add(s,a0))", True, False),
        ("a0:f[b,h,q_idx,kv_idx]; silu(add(s,a0))", False, False),
        ("a0:f[q_idx,kv_idx]; silu(add(s,a0))", False, False),
        ("a0:f[h,kv_idx]; silu(add(s,a0))", False, False),
    ],
)
def test_batches_that_read_one_bias_are_neighbours(program: str, jagged: bool, first: bool) -> None:
    config = Sm90Config("bfloat16", 64, 64, program, ("float32",), jagged, jagged)
    assert config.batch_first is first
