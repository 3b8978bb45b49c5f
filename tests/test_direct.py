"""direct: `gdpa_inductor.attention` outside of a compiled model is compiled alone, and fused."""

import functools
import logging
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import gdpa_inductor
from gdpa_inductor import GDPAError, backend, direct, functional
from gdpa_inductor._compat import subclasses
from tests._recorder import Recorder

pytestmark = pytest.mark.direct
CU = torch.tensor([0, 3, 3, 10], dtype=torch.int32)
BIAS = torch.randn(4, 16, 16, requires_grad=True)


def silu(s, b, h, q_idx, kv_idx):
    return F.silu(s)


def biased(s, b, h, q_idx, kv_idx):
    return F.silu(s + BIAS[h, q_idx, kv_idx])


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def dense(length=9, batch=2, dtype=torch.float32, heads=4):
    shapes = (heads, length, 8), (4 if heads % 4 == 0 else 1, length, 8)
    matrices = [torch.randn(batch, *shapes[i > 0], dtype=dtype) for i in range(3)]
    return [x.requires_grad_() for x in matrices]


def jagged(lengths=(3, 0, 7)):
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    matrices = [torch.randn(sum(lengths), 4, 8, requires_grad=True) for _ in range(3)]
    return matrices, {"cu_seqlens_q": cu, "cu_seqlens_k": cu}


def by_formula(*operands, **options):
    with torch.compiler.set_stance("force_eager"):
        return gdpa_inductor.attention(*operands, **options)


def assert_is_formula(operands, **options):
    actual = gdpa_inductor.attention(*operands, **options)
    torch.testing.assert_close(actual, by_formula(*operands, **options))


def with_gradients(function, operands, others=()):
    out = function(*operands)
    leaves = [*operands, *others]
    return [out, *torch.autograd.grad(out.sin().sum(), leaves)]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """What compiles a direct call; it runs the operator's definition."""
    recorder = Recorder()

    def recording(gm, inputs, **_):
        compiled = recorder(gm, inputs)
        counters["gdpa"]["matched"] += len(recorder.graphs[-1].matches)
        return compiled

    monkeypatch.setattr(backend, "gdpa_backend", recording)
    direct._alone.cache_clear()
    yield recorder
    direct._alone.cache_clear()
    direct._failed.clear()


def nested():
    (q, k, v), options = jagged()
    offsets = options["cu_seqlens_q"].long()
    return [torch.nested.nested_tensor_from_jagged(x, offsets) for x in (q, k, v)]


@pytest.mark.parametrize("kind", ["dense", "grouped", "jagged"])
def test_it_runs_a_kernel_forward_and_backward(kind: str) -> None:
    """On a CPU, by Inductor."""
    direct._alone.cache_clear()
    operands, options = (
        jagged() if kind == "jagged" else (dense(heads=8 if kind == "grouped" else 4), {})
    )
    options |= {"score_mod": silu if kind == "grouped" else biased, "scale": 0.3}
    options |= {"mask_mod": causal, "enable_gqa": kind == "grouped"}
    others = [] if kind == "grouped" else [BIAS]
    actual = with_gradients(lambda *x: gdpa_inductor.attention(*x, **options), operands, others)
    assert counters["gdpa"]["matched"] == 1
    assert counters["gdpa"]["lowered_cpu"] == 2
    expected = with_gradients(lambda *x: by_formula(*x, **options), operands, others)
    torch.testing.assert_close(actual, expected)


def test_nested_operands(recorder: Recorder) -> None:
    operands = nested()
    actual = gdpa_inductor.attention(*operands, score_mod=silu)
    assert len(recorder.matches) == 1, recorder.why()
    torch.testing.assert_close(actual.values(), by_formula(*operands, score_mod=silu).values())


def test_gradients_of_nested_views() -> None:
    """Their longest length is read, and remembered, which torch 2.11 does not compile."""
    direct._alone.cache_clear()
    leaves, options = jagged()
    offsets = options["cu_seqlens_q"].long()

    def call(*values):
        rows = [torch.nested.nested_tensor_from_jagged(x, offsets) for x in values]
        return gdpa_inductor.attention(*rows, score_mod=silu, mask_mod=causal).values()

    actual = with_gradients(call, leaves)
    assert counters["gdpa"]["lowered_cpu"] == 2
    with torch.compiler.set_stance("force_eager"):
        expected = with_gradients(call, leaves)
    torch.testing.assert_close(actual, expected)


SIZES = [(9, 2), (5, 2), (16, 3), (7, 4), (12, 5), (3, 7)]
LENGTHS = [(3, 0, 7), (2, 9, 4), (5, 5), (8, 2, 2, 6), (11, 3)]
CALLS = {
    "dense": [(dense(*sizes), {"score_mod": biased, "mask_mod": causal}) for sizes in SIZES],
    "jagged": [jagged(lengths) for lengths in LENGTHS],
}


@pytest.mark.parametrize("kind", CALLS)
def test_lengths_and_batches_are_compiled_once_for_all(recorder: Recorder, kind: str) -> None:
    for operands, options in CALLS[kind]:
        assert_is_formula(operands, **{"score_mod": silu, **options})
    assert len(recorder.graphs) <= 3  # the first; where a length differs; where a batch does
    assert len(recorder.matches) == len(recorder.graphs)


def test_no_kind_takes_the_room_of_another(recorder: Recorder) -> None:
    """Dynamo compiles a function 8 times, and then no more; and a size that differed once may vary
    ever after."""
    operands = dense()
    for n in range(12):
        assert_is_formula(operands, score_mod=eval(f"lambda s, *_: F.silu(s) * {n}.5"))
    for dim in (4, 8, 16):
        q = torch.randn(2, 4, 9, dim)
        gdpa_inductor.attention(q, q, q, score_mod=silu)
    assert len(recorder.matches) == len(recorder.graphs) == 15
    assert [type(m.problem.head_dim) for m in recorder.matches] == [int] * 15


def test_what_a_mod_captures_is_read_anew(recorder: Recorder) -> None:
    operands = dense()
    for bias in (torch.randn(9, 9), torch.randn(9, 9), torch.randn(9, 9, requires_grad=True)):
        assert_is_formula(
            operands, score_mod=lambda s, b, h, i, j, bias=bias: F.relu(s + bias[i, j])
        )
    assert len(recorder.graphs) == 2


def breaks(s, b, h, q_idx, kv_idx):
    torch._dynamo.graph_break()
    return F.silu(s)


def test_what_cannot_be_compiled_runs_unfused(recorder, monkeypatch, caplog) -> None:
    """It says so once, and is tried again after a minute."""
    operands = dense()
    now = [1000.0]
    monkeypatch.setattr(direct.time, "monotonic", lambda: now[0])
    with caplog.at_level(logging.WARNING, "gdpa_inductor"):
        for wait in (0, 1, 70):
            now[0] += wait
            actual = gdpa_inductor.attention(*operands, score_mod=breaks)
            torch.testing.assert_close(actual, by_formula(*operands, score_mod=silu))
    assert not recorder.graphs
    (message,) = (r.getMessage() for r in caplog.records if "not fused" in r.getMessage())
    assert "graph_break" in message


def test_a_first_call_that_takes_long_says_so_once(recorder, monkeypatch, caplog) -> None:
    """A process stood still for half a minute without a word."""
    monkeypatch.setattr(direct, "_LONG", 0.0)
    with caplog.at_level(logging.WARNING, "gdpa_inductor"):
        for _ in range(3):
            gdpa_inductor.attention(*dense(), score_mod=silu)
        assert caplog.text.count("the first attention call of its kind took") == 1
        monkeypatch.setenv("GDPA_SUMMARY", "0")
        gdpa_inductor.attention(*dense(dtype=torch.bfloat16), score_mod=silu)
        monkeypatch.delenv("GDPA_SUMMARY")
        monkeypatch.setattr(direct, "_LONG", 600.0)
        gdpa_inductor.attention(*dense(dtype=torch.float64), score_mod=silu)
    assert len(recorder.graphs) == 3 and len(caplog.records) == 1, caplog.text


def test_a_failure_of_the_backend_is_not_kept(recorder, monkeypatch, caplog) -> None:
    fails = [True]

    def failing(gm, inputs, **_):
        if fails[0]:
            raise RuntimeError("no compiler")
        return recorder(gm, inputs)

    monkeypatch.setattr(backend, "gdpa_backend", failing)
    operands = dense()
    with caplog.at_level(logging.WARNING, "gdpa_inductor"):
        assert_is_formula(operands, score_mod=silu)
    assert "no compiler" in caplog.text
    fails[0] = False
    gdpa_inductor.attention(*operands, score_mod=silu)
    assert not recorder.graphs  # not within the minute
    monkeypatch.setattr(direct, "_RETRY", 0.0)
    gdpa_inductor.attention(*operands, score_mod=silu)
    assert len(recorder.matches) == 1


def test_wrong_arguments_get_their_own_error(recorder: Recorder) -> None:
    q, k, v = dense()
    with pytest.raises(GDPAError, match="head dims of query and key differ"):
        gdpa_inductor.attention(q, k[..., :4], v)
    with pytest.raises(TypeError, match="score_mod must return a tensor"):
        gdpa_inductor.attention(q, k, v, score_mod=lambda s, *_: 1.0)
    (q, k, v), options = jagged()
    with pytest.raises(GDPAError, match="cu_seqlens_q"):
        wrong = torch.tensor([0, 7, 3, 10], dtype=torch.int32)
        gdpa_inductor.attention(q, k, v, **{**options, "cu_seqlens_q": wrong})
    with pytest.raises(ValueError, match="max_seqlen_k must not be negative"):
        gdpa_inductor.attention(q, k, v, **options, max_seqlen_k=-1)


def test_strict_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    direct._alone.cache_clear()
    monkeypatch.setenv("GDPA_STRICT", "1")
    escapes = []

    def mod(s, b, h, q_idx, kv_idx):
        escapes.append(s)
        return F.silu(s)

    with pytest.raises(GDPAError, match=r"gdpa\.strict"):
        gdpa_inductor.attention(*dense(), score_mod=mod)


def attend(x):
    return gdpa_inductor.attention(x, x, x, score_mod=silu)


OBSERVED = {
    "vmap": lambda f, x: torch.vmap(f)(x[None]),
    "grad": lambda f, x: torch.func.grad(lambda y: f(y).sum())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,))[1],
    "make_fx": lambda f, x: make_fx(f)(x)(x),
    "trace": lambda f, x: torch.jit.trace(f, (x,), check_trace=False)(x),
    "meta": lambda f, x: f(x.to("meta")),
}


@pytest.mark.parametrize("kind", OBSERVED)
def test_what_observes_sees_torchs_operators(kind: str, recorder: Recorder) -> None:
    def formula(x):
        return F.silu(x @ x.mT) @ x

    x = torch.randn(2, 4, 9, 8)
    actual = OBSERVED[kind](attend, x)
    if kind != "meta":
        torch.testing.assert_close(actual, OBSERVED[kind](formula, x))
    assert not recorder.graphs


def test_a_counter_of_operations_sees_them(recorder: Recorder) -> None:
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        attend(torch.randn(2, 4, 9, 8))
    assert counter.get_total_flops() == 2 * (2 * 2 * 4 * 9 * 9 * 8)
    assert not recorder.graphs


def test_fake_operands(recorder: Recorder) -> None:
    with FakeTensorMode():
        x = torch.empty(2, 4, 9, 8)
        assert attend(x).shape == x.shape
    assert attend(x).shape == x.shape
    assert not recorder.graphs


def test_stances_and_functions_that_are_not_compiled(recorder: Recorder) -> None:
    operands = dense()

    @torch.compiler.disable
    def inner(q, k, v):
        return gdpa_inductor.attention(q, k, v, score_mod=silu)

    outer = torch.compile(lambda *x: inner(*x) * 2, backend="eager")
    torch.testing.assert_close(outer(*operands), by_formula(*operands, score_mod=silu) * 2)
    assert len(recorder.matches) == 1, "a call of its own, within a model that is compiled"


def test_it_is_the_formula_where_nothing_is_compiled(recorder, caplog) -> None:
    """As under TORCH_COMPILE_DISABLE=1, which is read when torch is imported."""
    operands = dense()
    with torch._dynamo.config.patch(disable=True), caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert_is_formula(operands, score_mod=silu)
        with pytest.raises(GDPAError, match="head dims"):
            gdpa_inductor.attention(operands[0][..., :4], *operands[1:], score_mod=silu)
    assert not recorder.graphs and not caplog.records


def test_threads(recorder: Recorder) -> None:
    operands, outputs = dense(), []
    expected = by_formula(*operands, score_mod=biased)
    run = lambda: outputs.append(gdpa_inductor.attention(*operands, score_mod=biased))
    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outputs) == 8
    for one in outputs:
        torch.testing.assert_close(one, expected)


def test_while_another_thread_traces() -> None:
    """Until torch 2.13 a compiled function raises then, also where it has run before."""
    begun, ended = threading.Event(), threading.Event()

    def traced(x):
        begun.set()
        ended.wait(60)
        return x

    operands = dense()
    expected = by_formula(*operands, score_mod=biased)
    for _ in range(2):
        thread = threading.Thread(target=lambda: torch.fx.symbolic_trace(traced))
        thread.start()
        begun.wait(60)
        try:
            out = gdpa_inductor.attention(*operands, score_mod=biased)
        finally:
            ended.set()
            thread.join()
        torch.testing.assert_close(out, expected)
        begun.clear(), ended.clear()


@pytest.mark.parametrize("offsets", [[0, 5, 3, 9], [0, 3, 3, 12], [-1, 3, 5, 9]])
@pytest.mark.parametrize("more", [0, 300])
def test_offsets_are_checked_beside_a_bound(offsets: list[int], more: int) -> None:
    """Few and many."""
    cu = torch.tensor([offsets[0]] * more + offsets)
    q = torch.randn(9, 2, 8)
    with pytest.raises(GDPAError, match="must not decrease and must lie in"):
        gdpa_inductor.attention(
            q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=5, max_seqlen_k=5
        )


@pytest.mark.parametrize("one", [True, False])
def test_offsets_that_both_sides_have_are_read_once(recorder, monkeypatch, one: bool) -> None:
    """Reading waits for a GPU."""
    operands, options = jagged()
    checked = []
    monkeypatch.setattr(functional, "check_bounds", lambda name, *_: checked.append(name))
    if not one:
        options["cu_seqlens_k"] = options["cu_seqlens_k"].clone()
    gdpa_inductor.attention(*operands, score_mod=silu, **options)
    assert checked == (["cu_seqlens_q"] if one else ["cu_seqlens_q", "cu_seqlens_k"])
    assert len(recorder.matches) == 1, recorder.why()


def test_the_longest_sequence_of_a_nested_tensor_is_read_once(recorder, monkeypatch) -> None:
    """It waits for a GPU. The tensor remembers, as it does for torch's own attention."""
    operands, reads = nested(), []
    read = subclasses.read_longest
    monkeypatch.setattr(subclasses, "read_longest", lambda x: reads.append(read(x)) or reads[-1])
    for _ in range(3):
        gdpa_inductor.attention(*operands, score_mod=silu)
    assert len(reads) == 1 and subclasses.longest_of(operands[0]) == reads[0]
    assert len(recorder.graphs) == 1


def test_globals_of_a_mod_are_read_anew(recorder: Recorder) -> None:
    operands, module = dense(), {"F": F, "factor": 1.0, "table": torch.ones(4)}
    mod = eval("lambda s, b, h, i, j: F.silu(s) * factor + table[h]", module)
    for name, value in (("factor", 1.0), ("factor", 2.0), ("table", torch.rand(4))):
        module[name] = value
        assert_is_formula(operands, score_mod=mod)


def test_a_key_that_is_too_short_is_told_beside_one_set_of_offsets(recorder: Recorder) -> None:
    (q, k, v), options = jagged()
    with pytest.raises(GDPAError, match="cu_seqlens_k must not decrease and must lie in"):
        gdpa_inductor.attention(q, k[:8], v[:8], score_mod=silu, **options)


@pytest.mark.parametrize("make", [dense, nested])
def test_little_is_done_beside_the_compiled_call(recorder: Recorder, make) -> None:
    """Counted in calls of Python functions, as a clock would count the machine's other work."""
    operands = make()
    user = torch.compile(
        lambda *x: gdpa_inductor.attention(*x, score_mod=silu), backend=recorder, fullgraph=True
    )
    counts = []
    for function in (user, lambda *x: gdpa_inductor.attention(*x, score_mod=silu)):
        function(*operands)
        events: list[str] = []
        sys.setprofile(lambda frame, event, arg: events.append(event))
        function(*operands)
        sys.setprofile(None)
        counts.append(events.count("call"))
    assert counts[1] <= counts[0] + 30, counts


class _Table:
    values = torch.arange(16.0)


def full(s):
    return s


def _halved(s):
    return F.silu(s) / 2


@pytest.mark.parametrize(
    "alone, mod",
    [
        (True, None),
        (True, torch.relu),
        (True, lambda s, b, h, q_idx, kv_idx: _halved(s) * float(3)),
        (True, lambda b, h, q_idx, kv_idx: torch.where(b > 0, q_idx >= kv_idx, h > 0)),
        (True, lambda s, b, h, q_idx, kv_idx: torch.tanh(s.float()).to(torch.float32)),
        (False, biased),
        (False, lambda s, b, h, q_idx, kv_idx: s * torch.tensor([1.0, 2.0])[kv_idx]),
        (False, lambda s, b, h, q_idx, kv_idx: s * [1.0, 2.0].copy()[0]),
        (False, lambda s, b, h, q_idx, kv_idx: s * torch.full((9,), 2.0)[kv_idx]),  # and `full`
        (False, functools.wraps(F.relu)(lambda s, *at: s * CU[at[-1]])),
        (False, _Table.values.add),
        (False, lambda s, b, h, q_idx, kv_idx: s * _Table.values[q_idx]),
        (False, lambda s, b, h, q_idx, kv_idx, t=CU: s * t[b]),
        (False, (lambda table: lambda s, *at: s * table[at[-1]])(CU)),
        (False, torch.nn.SiLU()),
    ],
)
def test_mods_that_read_nothing_by_position(alone: bool, mod: object) -> None:
    assert direct.reads_arguments_alone(mod) is alone


def test_a_mod_that_is_mapped_is_said(caplog: pytest.LogCaptureFixture, monkeypatch) -> None:
    """The formula runs: it has no candidate, so `strict` has nothing else to raise about."""
    operands = dense()
    direct._alone.cache_clear()

    def wide(s, b, h, q_idx, kv_idx):
        return torch.stack([s, s * 0]).amax(0)

    with caplog.at_level(logging.WARNING, "gdpa_inductor"):
        assert_is_formula(operands, score_mod=wide)
    assert any("more than one element" in r.getMessage() for r in caplog.records)
    direct._alone.cache_clear()
    monkeypatch.setenv("GDPA_STRICT", "1")
    with pytest.raises(GDPAError, match="more than one element"):
        gdpa_inductor.attention(*operands, score_mod=wide)
    direct._alone.cache_clear()


def test_weights_without_a_score_are_no_candidate(caplog, monkeypatch) -> None:
    """Nothing is said of them, by `strict` neither."""
    monkeypatch.setenv("GDPA_STRICT", "1")
    with caplog.at_level(logging.WARNING, "gdpa_inductor"):
        assert_is_formula(dense(), score_mod=lambda s, b, h, i, j: torch.exp(-(i - j).abs() * 0.1))
    assert not any("not fused" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("mod, reads", [(silu, False), (lambda s, *at: torch.lgamma(s), True)])
def test_lengths_are_read_where_nothing_is_fused(monkeypatch, mod, reads: bool) -> None:
    """Of all rows, the scores would be many times as large. (As on a GPU: there a read waits.)"""
    operands, options = jagged((3, 0, 7))
    monkeypatch.setattr(functional, "_reads_lengths", lambda *_: False)
    direct._alone.cache_clear()
    direct._unfused.clear()
    bounds = []
    original = functional._longest

    def longest(*arguments):
        bounds.append(original(*arguments))
        return bounds[-1]

    monkeypatch.setattr(functional, "_longest", longest)
    for _ in range(2):
        assert_is_formula(operands, score_mod=mod, **options)
    assert bounds == [7] * 4 * reads  # of the formula too
    direct._alone.cache_clear()
    direct._unfused.clear()
