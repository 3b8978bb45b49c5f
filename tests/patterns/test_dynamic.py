"""Sizes that vary: no guard of ours, no more recompiles than without us, unbacked sizes."""

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor.options import Options
from tests._judge import compare
from tests._recorder import Recorder
from tests.operands import make_operands
from tests.patterns.rows import HEADS, SIZES

# name -> (function, specs)
SELF = {"q": "b h n d", "k": "b h n d", "v": "b h n e"}


def divided_by_length(q, k, v):
    return F.silu(q @ k.mT) / q.shape[2] @ v


def causal(q, k, v):
    n = q.shape[2]
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    return F.silu(q @ k.mT) * mask @ v


def biased(q, k, v, bias):
    n, m = q.shape[2], k.shape[2]
    return F.silu(q @ k.mT + bias[:n, :m]) @ v


def hstu(x, bias):
    b, n, _ = x.shape
    u, v, q, k = F.silu(x).split(12, dim=-1)
    q, k, v = (t.view(b, n, 3, 4) for t in (q, k, v))
    s = torch.einsum("bnhd,bmhd->bhnm", q, k) + bias[:n, :n]
    p = F.silu(s) / n * torch.ones(n, n, dtype=x.dtype).tril()
    return torch.einsum("bhnm,bmhd->bnhd", p, v).reshape(b, n, 12) * u


def folded(q, k, v):
    b, h, n, d = q.shape
    p = F.silu(torch.bmm(q.reshape(-1, n, d), k.reshape(b * h, -1, d).mT))
    return torch.bmm(p, v.reshape(b * h, -1, 6)).view(b, h, n, 6)


MODELS = [
    (divided_by_length, HEADS),
    (causal, SELF),
    (biased, {**HEADS, "bias": "20 20"}),
    (hstu, {"x": "b n 4*h*d", "bias": "20 20"}),
    (folded, HEADS),
]
LENGTHS = [(2, 5, 7), (2, 6, 8), (3, 9, 4), (5, 11, 12), (4, 2, 3), (2, 17, 18), (3, 13, 6)]
by_name = pytest.mark.parametrize(
    ("function", "specs"), MODELS, ids=[function.__name__ for function, _ in MODELS]
)


def sized(b: int, n: int, m: int) -> dict[str, int]:
    return {**SIZES, "b": b, "n": n, "m": m}


@by_name
@pytest.mark.usefixtures("uncached_fakes")
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_recompiles_as_often_as_without_us(function, specs, dynamic):
    counts = []
    for rewriting in (False, True):
        torch._dynamo.reset()
        recorder = Recorder(rewriting=rewriting)
        compiled = torch.compile(function, backend=recorder, fullgraph=True, dynamic=dynamic)
        for number, (b, n, m) in enumerate(LENGTHS):
            operands = make_operands(specs, sized(b, n, m), seed=number)
            assert not compare(function, compiled, operands)
        counts.append(len(recorder.graphs))
    assert counts[0] == counts[1]
    assert all(len(graph.matches) == 1 for graph in recorder.graphs), recorder.why()
    assert not any(graph.guards_added for graph in recorder.graphs)


@by_name
def test_one_compile_for_all_lengths(function, specs):
    """With the varying dims marked there is one graph for every length, rewritten."""
    recorder = Recorder()
    compiled = torch.compile(function, backend=recorder, fullgraph=True)
    for number, (b, n, m) in enumerate(LENGTHS):
        operands = make_operands(specs, sized(b, n, m), seed=number)
        assert not compare(function, compiled, operands, specs=specs)
    assert len(recorder.graphs) == 1
    assert len(recorder.matches) == 1, recorder.why()


def test_batch_of_one_and_length_of_one():
    recorder = Recorder()
    compiled = torch.compile(divided_by_length, backend=recorder, fullgraph=True, dynamic=True)
    for b, n, m in [(1, 5, 7), (2, 1, 7), (2, 5, 1), (1, 1, 1)]:
        operands = make_operands(HEADS, sized(b, n, m))
        assert not compare(divided_by_length, compiled, operands)
    assert not any(graph.guards_added for graph in recorder.graphs)


@pytest.mark.parametrize(
    ("weight", "values", "reason"),
    [
        (lambda s, x: s.clamp(-x, x), (0.5, 1.5), "a Python float that varies"),
        (lambda s, x: F.leaky_relu(s, x), (0.5, 0.25), "a parameter is no constant"),
        (lambda s, x: F.relu(s) ** x, (3, 4), "its exponent is no constant"),
        (lambda s, x: s.clamp(-x, x), tuple(torch.tensor([0.5, 1.5]).double()), None),
    ],
    ids=["float", "parameter", "exponent", "tensor"],
)
def test_numbers_of_python_that_vary(weight, values, reason):
    """The advice for a float, which is to make it a tensor, is good."""

    def attention(q, k, v, x):
        return weight(q @ k.mT, x) @ v

    recorder = Recorder()
    torch._dynamo.reset()
    compiled = torch.compile(attention, backend=recorder, fullgraph=True, dynamic=True)
    q, k, v = make_operands(HEADS, sized(2, 5, 7)).values()
    for x in values:
        torch.testing.assert_close(compiled(q, k, v, x), attention(q, k, v, x))
    assert len(recorder.matches) == (reason is None)
    assert reason is None or reason in recorder.why()


class Dropping(torch.nn.Module):
    """Dynamo makes the rate of a module a number that varies, under `dynamic=True`."""

    def __init__(self, drop) -> None:
        super().__init__()
        self.drop, self.p = drop, 0.0

    def forward(self, q, k, v):
        return self.drop(F.silu(q @ k.mT), self.p, self.training) @ v


@pytest.mark.parametrize("drop", [F.dropout, torch.dropout, F.alpha_dropout])
def test_a_dropout_whose_rate_varies(drop):
    """It drops nothing by now. The rewritten graph would drop nothing ever."""
    model, recorder = Dropping(drop), Recorder()
    compiled = torch.compile(model, backend=recorder, fullgraph=True, dynamic=True)
    operands = make_operands(HEADS, sized(2, 5, 7)).values()
    for rate in (0.0, 0.5):
        model.p = rate
        drawn = []
        for call in (model, compiled):
            torch.manual_seed(3)
            drawn.append(call(*operands))
        assert torch.equal(*drawn)
    assert not recorder.matches
    assert {r.code.name for r in recorder.rejections} == {"DROPOUT"}, recorder.why()
    model.eval()
    torch.testing.assert_close(compiled(*operands), model(*operands))
    assert len(recorder.matches) == 1


def test_a_dropout_whose_rate_varies_may_return_its_argument():
    """What is written into its result is then written into the query."""
    model = Dropping(lambda s, p, training: s)
    model.forward = lambda q, k, v: attend(F.dropout(q, model.p, True), q, k, v)

    def attend(dropped, q, k, v):
        s = F.silu(q @ k.mT)
        dropped.mul_(2)
        return s @ v + (q @ k.mT).sum()

    recorder = Recorder()
    compiled = torch.compile(model, backend=recorder, fullgraph=True, dynamic=True)
    with torch.no_grad():
        results = [
            call(*make_operands(HEADS, sized(2, 5, 7)).values()) for call in (model, compiled)
        ]
    torch.testing.assert_close(*results)
    assert not recorder.matches, "the query is written between"


def test_empty_sizes():
    recorder = Recorder()
    compiled = torch.compile(divided_by_length, backend=recorder, fullgraph=True)
    for b, n, m in [(0, 5, 7), (2, 5, 0), (2, 0, 7)]:
        operands = make_operands(HEADS, sized(b, n, m))
        if n:  # eager divides by zero
            assert not compare(divided_by_length, compiled, operands)


@pytest.mark.parametrize("rows", [True, False], ids=["queries", "keys"])
def test_unbacked_length(rows):
    """A length that is known at run time only, e.g. the longest sequence of a batch."""

    def attention(q, k, v, longest):
        length = longest.item()
        torch._check(length >= 2)
        torch._check(length <= (q if rows else k).shape[2])
        if rows:
            q = q[:, :, :length]
        else:
            k, v = k[:, :, :length], v[:, :, :length]
        return F.silu(q @ k.mT) @ v

    recorder = Recorder()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(attention, backend=recorder, fullgraph=True)
        for length in (3, 4, 2):
            operands = {**make_operands(HEADS, SIZES), "longest": torch.tensor(length)}
            assert not compare(attention, compiled, operands)
    assert len(recorder.graphs) == 1
    assert len(recorder.matches) == 1, recorder.why()


def test_unbacked_divisor():
    def attention(q, k, v, count):
        return F.silu(q @ k.mT) / count.item() @ v

    recorder = Recorder()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(attention, backend=recorder, fullgraph=True)
        for number in (3, 4):
            operands = {**make_operands(HEADS, SIZES), "count": torch.tensor(number)}
            assert not compare(attention, compiled, operands)
    assert len(recorder.matches) == 1, recorder.why()


def test_a_divisor_made_of_sizes_may_be_zero():
    """Kernels take plain sizes for 1 or more where scores are masked: 0/0 in a tail gives NaN in
    gradients.
    """

    def attention(q, k, v):
        n = k.shape[2]
        late = torch.arange(n) >= 2
        return torch.where(late, F.silu(q @ k.mT) / (n - 2), 0.0) @ v

    recorder = Recorder()
    compiled = torch.compile(attention, backend=recorder, dynamic=True)
    for keys in (7, 9, 2, 5, 2):
        assert not compare(attention, compiled, make_operands(HEADS, {**SIZES, "n": keys}))
    assert all(graph.matches for graph in recorder.graphs), recorder.why()
    assert any(
        "where(i0 == 0, 0, i0)" in match.problem.program.formula for match in recorder.matches
    )


def test_a_divisor_of_the_user_may_be_zero():
    def attention(q, k, v, count):
        return torch.where(torch.arange(k.shape[2]) >= count, F.silu(q @ k.mT), 0.0) / count @ v

    recorder = Recorder()
    compiled = torch.compile(attention, backend=recorder, dynamic=True)
    for count in (3, 5, -2, 0, 4):
        assert not compare(attention, compiled, {**make_operands(HEADS, SIZES), "count": count})
    assert len(recorder.matches) == len(recorder.graphs), recorder.why()


def test_the_analysis_of_a_size_that_is_a_quotient_adds_no_guard():
    """The fakes that the analysis makes of its leaves ask whether their strides are channels-last;
    with a batch of `k.shape[2] // h` the answer was kept as a guard.
    """

    def function(q, k, v, mask):
        k = k.view(4, k.shape[1], k.shape[2] // 3, 3).swapaxes(-3, -1)
        s = torch.einsum("bhnd,dhbm->bmhn", q, k)
        v = torch.split(v, 3, dim=-1)[0]
        return torch.einsum("bmhn,bmeh->bhne", torch.tanh(s) * mask, v)

    specs = {"q": "b h n d", "k": "d m b*h", "v": "b m e 2*h", "mask": "bool: m 1 n"}
    sizes = {**SIZES, "b": 4, "n": 6, "m": 5, "h": 3, "d": 4}
    recorder = Recorder()
    compiled = torch.compile(function, backend=recorder, fullgraph=True)
    operands = make_operands(specs, sizes)
    fault = compare(function, compiled, operands, training=False, specs=specs)
    assert not fault and recorder.matches, recorder.why()
    assert not any(graph.guards_added for graph in recorder.graphs)


def window(s, rows, columns, x):
    i, j = torch.arange(len(rows))[:, None], torch.arange(len(columns))
    return F.silu(s) * ((i - j).abs() < x)


WEIGHTS = {
    "at least": lambda s, i, j, x: torch.where(torch.maximum(i[:, None], j) >= x, F.silu(s), 0.0),
    "at most": lambda s, i, j, x: F.silu(s) * (torch.maximum(i[:, None], j) <= x),
    "chosen": lambda s, i, j, x: F.silu(s) * (torch.where(i[:, None] > j, j, x) == j),
    "filled": lambda s, i, j, x: F.silu(s) * (torch.full_like(s, x) == j),
    "times one": lambda s, i, j, x: (
        F.silu(s) * ((torch.ones(7, dtype=s.dtype) * x).float() <= 179 / 256)  # bf16(0.7)
    ),
    "window": window,
    "temperature": lambda s, i, j, x: F.silu(s / x),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_float_that_varies_rounds_as_torch_rounds_it(name: str, dtype) -> None:
    """Beside 16-bit tensors a comparison is in 16 bits, beside integers in fp32."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, n, 4).to(dtype) for n in (5, 7, 7))
    rows = torch.tensor([0.0, 0.0, 0.1, 0.3, 0.7]).to(dtype)
    columns = torch.tensor([0.1, 0.3, 0.7, 0.3, 0.1, 0.7, 0.2]).to(dtype)

    def attend(x):
        return WEIGHTS[name](q @ k.mT, rows, columns, x) @ v

    for judge in (False, True):
        recorder = Recorder(Options(profit=False, judge=judge))
        torch._dynamo.reset()
        compiled = torch.compile(attend, backend=recorder, dynamic=True)
        for x in (0.3, 0.1, 0.7, 3.00000001):
            torch.testing.assert_close(compiled(x), attend(x), rtol=0.05, atol=0.05)
        assert recorder.matches, recorder.why()
        assert "other weights" not in recorder.why()


PADDED = 14


SPLITS = {
    "view": lambda x: x.view(-1, PADDED, 2, 16).transpose(1, 2),
    "unflatten": lambda x: x.unflatten(-1, (2, 16)).transpose(1, 2),
    "reshape": lambda x: x.reshape(x.shape[0], PADDED, 2, 16).permute(0, 2, 1, 3),
}


def hstu_of_literals(split):
    """Its inputs are [L, H, D], with symbols for H and D; padding flattens these, and the heads are
    split off by literals.
    """

    def attention(q, k, v, offsets):
        pad = torch.ops.gdpa.jagged_to_padded_dense
        to_heads = lambda x: split(pad(x.flatten(1), offsets, PADDED))
        places = torch.arange(PADDED)
        seen = (places[:, None] >= places) & (places < torch.diff(offsets)[:, None, None])
        p = F.silu(to_heads(q) @ to_heads(k).mT) / PADDED * seen[:, None]
        out = (p @ to_heads(v)).transpose(1, 2).flatten(2)
        return torch.ops.gdpa.dense_to_jagged(out, offsets, q.shape[0]).view(-1, 2, 16)

    return attention


@pytest.mark.parametrize("split", SPLITS)
def test_literal_heads_of_symbolic_widths_are_jagged(split):
    """H·D is only guarded to be 32."""
    attention, recorder = hstu_of_literals(SPLITS[split]), Recorder()
    compiled = torch.compile(attention, backend=recorder, fullgraph=True, dynamic=True)
    for offsets in (torch.tensor([0, 5, 5, 12]), torch.tensor([0, 9, 14, 14, 20])):
        total = int(offsets[-1])
        specs = dict.fromkeys("qkv", f"{total} 2 16")
        operands = {**make_operands(specs, SIZES, dtype=torch.float64), "offsets": offsets}
        fault = compare(attention, compiled, operands, training=True)
        assert not fault, fault
    (match,) = recorder.matches
    assert match.problem.jagged_query and match.problem.jagged_key and not match.notes
    assert not match.score_mod.aux  # the mask is a program: it is not stored
