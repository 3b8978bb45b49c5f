"""Dropout on the weights in training: the masks are those of the seeds, in every form and mode.

Compiled models are held to `gdpa.verify`, which compares them with eager under the masks that the
fused calls draw. Here these masks are also drawn by hand.
"""

import contextlib
import re
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._inductor import config
from torch.utils.checkpoint import checkpoint

from gdpa_inductor.drawn import as_drawn
from gdpa_inductor.graphs import copy_graph
from gdpa_inductor.options import Options
from gdpa_inductor.patterns import rewrite_graph
from gdpa_inductor.patterns.jagged import unpadding
from gdpa_inductor.patterns.reading import layout
from gdpa_inductor.program.ops.random import random16, threshold
from gdpa_inductor.program.score_mod import ScoreMod
from tests._recorder import Recorder

P = 0.3
SHAPE = (2, 3, 40, 16)
Operands = list[Tensor]


def operands(*shape: int, dtype: torch.dtype = torch.float32) -> Operands:
    return [torch.randn(shape or SHAPE, dtype=dtype, requires_grad=True) for _ in range(3)]


def compiled(function: Callable, backend: str = "gdpa", expect: int | None = 1, **options: object):
    torch._dynamo.reset()
    ours = {"gdpa.profit": False, "gdpa.expect": expect} if backend == "gdpa" else {}
    return torch.compile(function, backend=backend, options={**ours, **options})


def rewritten(function: Callable, *given: Tensor) -> Recorder:
    """What was found in it; its graph ran as it is then."""
    torch._dynamo.reset()
    recorder = Recorder()
    torch.compile(function, backend=recorder)(*(given or operands()))
    return recorder


def assert_refused_by_judge(function: Callable) -> None:
    recorder = rewritten(function)
    assert not recorder.matches
    assert {r.code.name for r in recorder.rejections} == {"INVALID_REWRITE"}, recorder.why()


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.dropout(F.silu(q @ k.mT).tril(), P) @ v


def seeds(count: int) -> Tensor:
    """What Inductor's code draws in one call."""
    return torch.ops.aten.randint.low(-(1 << 63), (1 << 63) - 1, [count], dtype=torch.int64)


def mask(seed: Tensor, p: float = P, sizes: tuple[int, ...] = (2, 3, 40, 40)) -> Tensor:
    shapes = [[-1 if d == i else 1 for d in range(4)] for i in range(4)]
    places = [torch.arange(n).view(shape) for n, shape in zip(sizes, shapes, strict=True)]
    return random16(seed, *places) >= threshold(p)


def test_the_mask_is_that_of_the_seed_forward_and_backward():
    """In fp64, against autograd through the formula."""
    given = operands(dtype=torch.float64)
    function = compiled(plain)
    torch.manual_seed(5)
    out = function(*given)
    grads = torch.autograd.grad(out.square().sum(), given)
    torch.manual_seed(5)
    q, k, v = given
    expected = (F.silu(q @ k.mT).tril() * mask(seeds(1)[0]) / (1 - P)) @ v
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(grads, torch.autograd.grad(expected.square().sum(), given))


def test_equal_states_give_equal_bits_and_others_do_not():
    given, function = operands(), compiled(plain)

    def step() -> list[Tensor]:
        out = function(*given)
        return [out, *torch.autograd.grad(out.sum(), given)]

    torch.use_deterministic_algorithms(True)
    try:
        torch.manual_seed(1)
        first, second = step(), step()
        torch.manual_seed(1)
        assert all(map(torch.equal, first, step()))
        assert all(map(torch.equal, second, step()))
        assert not torch.equal(first[0], second[0])
    finally:
        torch.use_deterministic_algorithms(False)


def around(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    first = F.dropout(x, 0.5)
    out = F.dropout(F.silu(q @ k.mT), P) @ F.dropout(v, 0.1)
    noise = torch.rand_like(x)
    return first, out, noise, F.dropout(x, 0.2)


def test_what_else_is_drawn_is_what_stock_inductor_draws():
    """Before and after it in the graph, and in later calls."""
    given, results = [*operands(), torch.randn(1000)], {}
    for backend in ("inductor", "gdpa"):
        function = compiled(around, backend)
        torch.manual_seed(3)
        first, out, noise, last = function(*given)
        grad = torch.autograd.grad(out.sum(), given[0])[0]
        results[backend] = [first, noise, last, torch.get_rng_state(), torch.rand(5)]
        assert grad.shape == given[0].shape
    assert all(map(torch.equal, *results.values()))


def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    return F.dropout(torch.bmm(q, k.mT).sigmoid(), P).bmm(v)


def heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = torch.einsum("bhnd,bhmd->bnmh", q, k)
    return torch.einsum("bnmh,bhme->bnhe", F.dropout(F.relu(w), P), v)


def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = F.silu(q @ k.mT)
    F.dropout(w, P, True, True)
    return w @ v


def before_the_activation(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.silu(F.dropout(q @ k.mT, P)) @ v


def two(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.dropout(F.dropout(F.silu(q @ k.mT), P), 0.2) @ v


def of_values_too(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.dropout(F.silu(q @ k.mT), P, True) @ v


def by_name(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.dropout(F.silu(q @ k.mT), train=True, p=P) @ v


def transposed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (v.mT @ F.dropout(torch.tanh(k @ q.mT), P)).mT


def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.dropout(F.silu(q[:, 0] @ k[:, 0].mT), 0.5) @ v[:, 0]


def of_masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    place = torch.arange(q.shape[-2])
    mask = (place[:, None] - place).abs() < 9
    return F.dropout(F.gelu(q @ k.mT) * mask / q.shape[-2], P) @ v


def in_checkpoint(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return checkpoint(plain, q, k, v, use_reentrant=False)


def after_another_dropout(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mask of a bias that is not ours would be drawn apart; this one is on the scores."""
    s = q @ k.mT
    return (torch.sigmoid(s) * F.dropout(F.relu(s), P)) @ v


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.project = nn.LayerNorm(16), nn.Dropout(0.25), nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(self.norm(x)).chunk(3, -1)
        return x + self.drop(F.silu(q @ k.mT) / x.shape[-2]) @ v


FORMS = [
    plain, folded, heads_last, in_place, before_the_activation, two, of_values_too, by_name,
    transposed, one_head, of_masked, in_checkpoint, after_another_dropout,
]  # fmt: skip


@contextlib.contextmanager
def no_warning(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """`gdpa.verify` says where it does not compare."""
    with caplog.at_level("WARNING", "gdpa_inductor"):
        yield
    assert "gdpa.verify" not in caplog.text, caplog.text


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: Callable, caplog: pytest.LogCaptureFixture):
    function = compiled(form, **{"gdpa.verify": True})
    with no_warning(caplog):
        function(*operands()).sum().backward()


@pytest.mark.parametrize("kernel", ["cpu", "chunked", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels(kernel: str, dtype: torch.dtype, caplog: pytest.LogCaptureFixture):
    """Of several blocks and chunks."""
    function = compiled(plain, **{"gdpa.verify": True, "gdpa.kernel": kernel})
    with no_warning(caplog):
        function(*operands(2, 3, 300, 16, dtype=dtype)).sum().backward()


def test_a_model_with_norms_and_two_layers(caplog: pytest.LogCaptureFixture):
    model = nn.Sequential(Layer(), Layer())
    function = compiled(model, expect=2, **{"gdpa.verify": True})
    with no_warning(caplog):
        function(torch.randn(2, 40, 16)).sum().backward()
    model.eval()
    x = torch.randn(2, 40, 16)
    torch.testing.assert_close(function(x), model(x))


def test_sizes_that_vary(caplog: pytest.LogCaptureFixture):
    """The rate is a literal: Dynamo makes a global number vary too."""
    torch._dynamo.reset()
    options = {"gdpa.profit": False, "gdpa.verify": True, "gdpa.expect": 1}
    form = lambda q, k, v: F.dropout(F.silu(q @ k.mT).tril(), 0.3) @ v
    function = torch.compile(form, backend="gdpa", dynamic=True, options=options)
    with no_warning(caplog):
        for n in (40, 70):
            function(*operands(2, 3, n, 16)).sum().backward()


OFFSETS = torch.tensor([0, 7, 7, 27])


def padded_by_aten(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    pad = lambda x: torch.ops.aten._jagged_to_padded_dense_forward(x, [OFFSETS], [20], 0.0)
    q, k, v = (pad(x).view(3, 20, 2, 8).transpose(1, 2) for x in (q, k, v))
    out = (F.dropout(F.silu(q @ k.mT), P) @ v).transpose(1, 2).reshape(3, 20, 16)
    return torch.ops.aten._padded_dense_to_jagged_forward(out, [OFFSETS], 27)


def padded_nested(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.to_padded_tensor(0.0).transpose(1, 2) for x in (q, k, v))
    return F.dropout(F.silu(q @ k.mT), P) @ v


@pytest.mark.parametrize("form", [padded_by_aten, padded_nested])
def test_jagged_sides_draw_by_places_in_the_sequence(form: Callable):
    """The rewritten graph against the one before, under the masks that it draws; run eagerly."""
    values, results = torch.randn(3, 27, 16), []
    for before in (False, True):

        def backend(gm: torch.fx.GraphModule, _: list) -> Callable:
            original = copy_graph(gm)
            result = rewrite_graph(gm, options=Options(profit=False))
            assert [match.problem.jagged for match in result.matches] == [True]
            as_drawn(original, result.matches)
            gm.recompile()
            return (original if before else gm).forward

        given: list[Tensor] = list(values.clone())
        if form is padded_nested:
            nest = lambda x: torch.nested.nested_tensor_from_jagged(
                x.view(27, 2, 8), OFFSETS, min_seqlen=0, max_seqlen=20
            )
            given = [nest(x).requires_grad_() for x in given]
        torch._dynamo.reset()
        torch.manual_seed(8)
        out = torch.compile(form, backend=backend)(*given)
        grads = torch.autograd.grad(out.sum(), given) if out.requires_grad else ()
        results.append([out, *(x.values() for x in grads)])
    torch.testing.assert_close(*results)


# Dropout that does nothing costs nothing


@pytest.mark.parametrize("arguments", [(0.0,), (0.3, False), (0.3, False, True)])
def test_idle_dropouts_leave_no_trace(arguments: tuple):
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout(F.silu(q @ k.mT), *arguments) @ v

    def without(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.silu(q @ k.mT) @ v

    programs = []
    for each in (function, without):
        recorder = rewritten(each)
        assert not any("seed" in call for call in recorder.graphs[0].calls_after)
        programs.append(recorder.matches[0].score_mod)
    assert programs[0] == programs[1]


def test_everything_dropped_is_zero():
    given = operands()
    out = compiled(lambda q, k, v: F.dropout(F.silu(q @ k.mT), 1.0) @ v)(*given)
    assert torch.equal(out, torch.zeros_like(out))


# What is left alone


def returned_too(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = F.dropout(F.silu(q @ k.mT), P)
    return w @ v, w


def multiplies_two_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = F.dropout(F.silu(q @ k.mT), P)
    return w @ v + w @ (v * 2)


def beside_row_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = F.dropout(torch.sigmoid(q @ k.mT), P)
    return w / (w.sum(-1, keepdim=True) + 1) @ v


def one_mask_for_all_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = F.silu(q @ k.mT)
    return (w * F.dropout(torch.ones_like(w[:, :1]), P)) @ v


def of_the_first_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = F.silu(q @ k.mT)
    return (w * F.dropout(torch.ones_like(w), P)[:, :1]) @ v


def of_copies(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = F.dropout(F.silu(q @ k.mT).unsqueeze(2).expand(-1, -1, 2, -1, -1), P)
    return w[:, :, 0] @ v


def alike_of(name: str) -> Callable:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return getattr(F, name)(F.silu(q @ k.mT), P, True) @ v

    return function


def with_a_tiny_rate(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.dropout(F.silu(q @ k.mT), 1e-7) @ v


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = F.silu(q @ k.mT)
    return (w * (torch.rand_like(w) > P) / (1 - P)) @ v


REFUSED = {
    "returned": (returned_too, "SCORES_ESCAPE"),
    "two values": (multiplies_two_values, "SCORES_ESCAPE"),
    "row sums": (beside_row_sums, "DROPOUT"),
    "copies of the scores": (of_copies, "DROPOUT"),
    "scores of the first head": (of_the_first_head, "DROPOUT"),
    "alpha": (alike_of("alpha_dropout"), "DROPOUT"),
    "features": (alike_of("feature_alpha_dropout"), "DROPOUT"),
    "channels": (alike_of("dropout2d"), "DROPOUT"),
    "tiny": (with_a_tiny_rate, "DROPOUT"),
    "by hand": (by_hand, "DROPOUT"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    function, code = REFUSED[name]
    recorder = rewritten(function)
    assert recorder.untouched
    assert {r.code.name for r in recorder.rejections} == {code}, recorder.why()


def test_a_mask_of_other_elements_is_an_operand():
    """It is drawn as it was: the region reads its result."""
    recorder = rewritten(one_mask_for_all_heads)
    assert not any(match.draws for match in recorder.matches)
    assert recorder.untouched or recorder.graphs[0].calls_after["dropout"] == 1


@pytest.mark.parametrize("how", ["options", "config"])
def test_who_wants_eagers_numbers_gets_them(how: str):
    given = operands()
    settings = {"fallback_random": True}
    options = settings if how == "options" else {}
    with config.patch(settings if how == "config" else {}):
        function = compiled(plain, expect=0, **options)
        torch.manual_seed(2)
        out = function(*given)
    torch.manual_seed(2)
    torch.testing.assert_close(out, plain(*given))


def test_without_gradients_it_draws_as_well():
    """Dropout in training, as for an estimate of doubt."""
    given = operands()
    with torch.no_grad():
        function = compiled(two)
        torch.manual_seed(4)
        out = function(*given)
        torch.manual_seed(4)
        q, k, v = given
        first, second = seeds(2)
        kept = mask(first) * mask(second, 0.2)
        expected = (F.silu(q @ k.mT) * kept / (1 - P) / 0.8) @ v
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


# Recomputation


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "around the compiled model"])
def test_recomputation_draws_the_same_mask(outside: bool):
    """The gradient is that of the output that was seen: a mask of its own would show."""
    given = operands(dtype=torch.float64)
    if outside:
        inner = compiled(plain)
        function = lambda q, k, v: checkpoint(inner, q, k, v, use_reentrant=False)
    else:
        function = compiled(in_checkpoint)
    torch.manual_seed(6)
    out = function(*given)
    dv = torch.autograd.grad(out.sum(), given[2])[0]
    # The sum of the output is that of dV · V, for the mask of the forward only.
    torch.testing.assert_close((dv * given[2]).sum(), out.sum())
    assert not torch.equal(function(*given), out)


# The judge


def draws(p: float, seed: str = "a0") -> str:
    return f"float(ge(random16({seed},b,h,q_idx,kv_idx),{threshold(p)}))"


@pytest.mark.refused_by_judge
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (str(threshold(P)), str(threshold(P) + 7)),
        (str(threshold(P)), str(threshold(P) - 7)),
        ("1.4285714285714286", "1.3"),
        (draws(P), "1.0"),
    ],
    ids=["another rate", "a lower rate", "another scale", "nothing is dropped"],
)
def test_a_program_that_drops_otherwise_is_refused(old: str, new: str, monkeypatch):
    right = unpadding.program_of

    def wrong(*args):
        program, kept = right(*args)
        text = str(program)
        assert old in text
        return ScoreMod.parse(text.replace(old, new)), kept

    monkeypatch.setattr(unpadding, "program_of", wrong)
    assert_refused_by_judge(lambda q, k, v: F.dropout(F.silu(q @ k.mT), P) @ v)


def test_the_seed_stands_where_the_dropout_stood():
    recorder = rewritten(around, *operands(), torch.randn(10))
    targets = re.findall(r"target=([^(\n]*)", recorder.graphs[0].after)
    drawing = [x for x in targets if re.search("seed|dropout|rand_like", x)]
    assert [re.sub(r".*(seed|dropout|rand_like).*", r"\1", x) for x in drawing] == [
        "dropout", "seed", "dropout", "rand_like", "dropout",
    ]  # fmt: skip


@pytest.mark.refused_by_judge
def test_a_mask_for_several_scores_is_found_by_the_judge_too(monkeypatch):
    monkeypatch.setattr(layout, "_access", lambda *_: ())
    assert_refused_by_judge(one_mask_for_all_heads)
