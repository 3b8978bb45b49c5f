"""What is rarely between two products: exact where it is rewritten, untouched where it is not.

Here are the edges of functions (ties, zeros, thresholds), functions that few models use, aliases
and bit patterns, and operands of other kinds. No verdict is asked for but exactness, unless said.
"""

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor import gdpa_backend
from tests._recorder import Recorder, recorded
from tests.operands import make_operands
from tests.patterns.activations_table import ACTIVATIONS
from tests.patterns.rows import HEADS, SIZES, is_exact, is_fused, judge, refused


def on_a_grid(specs: dict[str, str]) -> dict:
    """Sparse whole numbers: scores meet 0 and the thresholds of the activations exactly."""
    operands = make_operands(specs, SIZES)
    with torch.no_grad():
        for value in operands.values():
            value.copy_(value.round().clamp(-2, 2))
    return operands


@pytest.mark.parametrize("scale", [1.0, 0.5, 1.5])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_ties_and_thresholds(name, scale):
    """The value and the derivative of an activation where it has a corner are torch's."""
    act = ACTIVATIONS[name]

    def attention(q, k, v):
        return act(q @ k.mT * scale) @ v

    judge(attention, operands=on_a_grid(HEADS))


def biased(name):
    """An attention with a bias that sets its scores, from -4 to 4, and its operands."""
    attention = lambda q, k, v, bias: ACTIVATIONS[name](q @ k.mT + bias) @ v
    matrices = (torch.full((1, 1, 9, 9), 0.1, dtype=torch.float64) for _ in range(3))
    bias = torch.linspace(-4, 4, 81, dtype=torch.float64).view(9, 9)
    return attention, [x.requires_grad_() for x in (*matrices, bias)]


def gradients(function, operands, coming):
    """What a gradient of the output that is `coming` everywhere leaves in the operands."""
    out = function(*operands)
    return torch.autograd.grad(out, operands, torch.full_like(out, coming))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_that_are_not_finite(name):
    """Where the slope of an activation is 0 because it is flat there, nothing comes through."""
    attention, operands = biased(name)
    recorder = Recorder()
    compiled = torch.compile(attention, backend=recorder, fullgraph=True)
    for coming in (torch.inf, torch.nan):
        eager, actual = (gradients(f, operands, coming) for f in (attention, compiled))
        for theirs, mine in zip(eager, actual, strict=True):
            assert torch.equal(theirs.isfinite(), mine.isfinite()), (coming, theirs, mine)
    assert recorder.matches


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if "relu" in name])
def test_the_slope_of_relu_at_a_score_that_is_no_number(name):
    """It is 1, so that what is squared behind it stays NaN."""
    attention, operands = biased(name)
    with torch.no_grad():
        operands[-1][4, 2] = torch.nan
    recorder = Recorder()
    compiled = torch.compile(attention, backend=recorder, fullgraph=True)
    eager, actual = (gradients(f, operands, 1.0) for f in (attention, compiled))
    torch.testing.assert_close(actual, eager, equal_nan=True)
    assert recorder.matches


CORNERS = {
    "maximum of the bias": lambda s, t: torch.maximum(s, t),
    "minimum of the bias": lambda s, t: torch.minimum(s, t),
    "clamp to the bias": lambda s, t: torch.clamp(s, min=t),
    "clamp between": lambda s, t: torch.clamp(s, t - 1, t + 1),
    "greater": lambda s, t: s * (s > t),
    "not less": lambda s, t: s * (s >= t),
    "equal": lambda s, t: s * (s == t) + s,
    "absolute difference": lambda s, t: (s - t).abs(),
    "product": lambda s, t: s * t,
    "where zero": lambda s, t: torch.where(s == 0, t, s),
    "power": lambda s, t: (s - t) ** 2,
    "sign": lambda s, t: torch.sign(s) * t,
}


@pytest.mark.parametrize("name", CORNERS)
def test_ties_with_an_operand(name):
    def attention(q, k, v, t):
        return CORNERS[name](q @ k.mT, t) @ v

    judge(attention, operands=on_a_grid({**HEADS, "t": "h n m"}))


RARE = {
    "floor division": lambda s, t: s.detach() // 2 + s,
    "floor of a quotient": lambda s, t: torch.div(s, 2, rounding_mode="floor") + s,
    "truncated quotient": lambda s, t: torch.div(s, t, rounding_mode="trunc") + s,
    "remainder": lambda s, t: s % 3,
    "remainder of the operand": lambda s, t: torch.remainder(s, t),
    "fmod": lambda s, t: torch.fmod(s, 2.0),
    "power of two": lambda s, t: torch.pow(2.0, 0.3 * s),
    "power of the operand": lambda s, t: torch.pow(s.abs() + 1.0, t),
    "reflected division": lambda s, t: 1.0 / (s.square() + 1.0),
    "reflected subtraction": lambda s, t: torch.rsub(s, 2.0, alpha=3),
    "arc tangent": lambda s, t: torch.atan2(s, t),
    "arc tangent of one": lambda s, t: torch.atan(s),
    "hypotenuse": lambda s, t: torch.hypot(s, t),
    "log of a sum of exps": lambda s, t: torch.logaddexp(s, t),
    "weighted mean": lambda s, t: torch.lerp(s, s * 2, 0.3),
    "weighted mean by the operand": lambda s, t: torch.lerp(s, torch.tanh(s), t),
    "sum with a quotient": lambda s, t: torch.addcdiv(s, s, t, value=0.5),
    "sum with a product": lambda s, t: torch.addcmul(s, s, t, value=0.5),
    "copied sign": lambda s, t: torch.copysign(s, t - 1.0),
    "step": lambda s, t: torch.heaviside(s.detach(), t.detach()) * s,
    "no nan": lambda s, t: torch.nan_to_num(torch.log(s), nan=0.5),
    "x log x": lambda s, t: torch.xlogy(s, t),
    "threshold": lambda s, t: F.threshold(s, 0.5, 0.1),
    "learned slope": lambda s, t: F.prelu(s, t[:, 0, 0]),
    "log sigmoid": lambda s, t: F.logsigmoid(s) * t,
    "cosine": lambda s, t: torch.cos(s * t),
    "hyperbolic": lambda s, t: torch.sinh(0.3 * s) + torch.cosh(0.2 * s),
    "inverse hyperbolic": lambda s, t: torch.asinh(s),
    "erfc": lambda s, t: torch.erfc(s),
    "sinc": lambda s, t: torch.sinc(s),
    "expit": lambda s, t: torch.special.expit(s),
    "square root of absolute": lambda s, t: (s.abs() + 0.1).sqrt(),
    "log2": lambda s, t: torch.log2(s.abs() + 1.0) + torch.log10(s.abs() + 1.0),
    "gated halves": lambda s, t: F.glu(torch.cat([s, s], -1), -1),
    "finite only": lambda s, t: torch.where(torch.isfinite(s), s, 0.0),
    "logical": lambda s, t: s * torch.logical_and(s > 0, t > 1.0),
    "bitwise": lambda s, t: s * ((s > 0) ^ (t > 1.0)),
    "methods of operators": lambda s, t: s * t.__gt__(1.0) * t.__ne__(s),
    "not": lambda s, t: s * ~(s > 0),
    "fraction": lambda s, t: s.frac() * t,
    "as integers": lambda s, t: (s * 3).int() * t,
    "numbers of booleans": lambda s, t: ((s > 0).long() + (t > 1).int()) * s,
    "stacked": lambda s, t: torch.stack([s, s * t]).sum(0),
    "joined": lambda s, t: torch.cat([s[..., :3], 2 * s[..., 3:]], -1),
    "chunks": lambda s, t: torch.cat([c * 2 for c in s.chunk(2, -1)], -1),
    "einsum with a mask": lambda s, t: torch.einsum("bhnm,hnm->bhnm", s, t),
    "einsum with a head scale": lambda s, t: torch.einsum("bhnm,h->bhnm", s, t[:, 0, 0]),
    "product with a diagonal": lambda s, t: s @ torch.diag(t[0, 0]),
    "reduced over nothing": lambda s, t: s.unsqueeze(0).sum(0),
    "mean of one": lambda s, t: s.unsqueeze(-1).mean(-1),
    "largest of one": lambda s, t: s.unsqueeze(-1).amax(-1),
    "normalised with one": lambda s, t: s.unsqueeze(-1).softmax(-1).squeeze(-1) * s,
    "cumulated with one": lambda s, t: s.unsqueeze(-1).cumsum(-1).squeeze(-1),
    "masked by its own index": lambda s, t: s.tril() + s.triu(1) * t,
    "complex": lambda s, t: torch.view_as_real(torch.complex(s, s * t))[..., 1],
    "bits": lambda s, t: s.view(torch.int64).view(torch.float64) * 2,
    "strides": lambda s, t: s.contiguous().as_strided(s.shape, (105, 35, 7, 1)) * t,
    "windows": lambda s, t: s.unfold(-1, 1, 1).squeeze(-1) * t,
    "repeated once": lambda s, t: s.repeat(1, 1, 1, 1) * t,
    "tiles": lambda s, t: s.tile(1) * t,
    "selected heads": lambda s, t: s.index_select(1, torch.tensor([0, 1, 2])) * t,
    "heads turned round": lambda s, t: s[:, [2, 1, 0]] * t,
    "rows gathered": lambda s, t: s.gather(-1, torch.arange(7).expand(s.shape)),
    "filled diagonal": lambda s, t: s.clone().fill_diagonal_(0.0) if s.dim() == 2 else s * t,
    "scattered": lambda s, t: s.scatter(-1, torch.zeros(2, 3, 5, 1, dtype=torch.long), 0.0),
    "masked scatter": lambda s, t: s.masked_scatter(t.expand_as(s) > 1, torch.zeros_like(s)),
    "padded and cut": lambda s, t: F.pad(s, (0, 1))[..., :-1] * t,
    "padded and shifted": lambda s, t: F.pad(s, (1, 0))[..., :-1] * t,
    "dropout of everything": lambda s, t: F.dropout(s, 1.0),
    "vmapped": lambda s, t: torch.vmap(lambda x: F.silu(x))(s) * t,
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", RARE)
def test_rare_functions(name, training):
    def attention(q, k, v, t):
        return RARE[name](q @ k.mT, t) @ v

    judge(attention, {**HEADS, "t": "positive: h n m"}, training=training)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.complex128], ids=str)
def test_other_number_fields(dtype):
    """Integer and complex products are another matter."""
    q, k, v = (torch.randint(-3, 4, (2, 3, n, 4)).to(dtype) for n in (5, 7, 7))
    recorder = recorded(lambda q, k, v: ((q @ k.mT) * 2) @ v, q, k, v)
    assert not recorder.matches and recorder.untouched


def test_sparse_operand():
    adjacency = torch.eye(5, dtype=torch.float64).to_sparse()
    attention = lambda q, k: F.silu(torch.sparse.mm(adjacency, q @ k.mT)) @ k
    q, k = torch.randn(5, 4, dtype=torch.float64), torch.randn(7, 4, dtype=torch.float64)
    assert not recorded(attention, q, k, fullgraph=False).matches


class OfUser(torch.Tensor):
    """A class with a name of its own, such as those of pictures and masks in torchvision."""


@pytest.mark.parametrize("view", ["itself", "view"])
@pytest.mark.parametrize("position", [0, 2, 3])
def test_operand_of_a_class_of_the_user(position, view):
    """torch's check of custom operators takes no such tensor, so one would fail at the first call;
    stock gives its products views, which are plain.
    """

    def attention(q, k, v, bias):
        q, v = (x.transpose(1, 2).transpose(1, 2) if view == "view" else x for x in (q, v))
        return F.silu(q @ k.mT + bias) @ v

    torch._dynamo.reset()
    operands = [torch.randn(2, 3, n, 4) for n in (5, 7, 7)] + [torch.randn(5, 7)]
    operands[position] = operands[position].as_subclass(OfUser)
    compiled = torch.compile(attention, backend=gdpa_backend, options={"gdpa.profit": False})
    result = compiled(*operands)
    assert type(result) is OfUser
    torch.testing.assert_close(result, attention(*operands))
    recorder = recorded(attention, *operands)
    assert not recorder.matches
    (refusal,) = recorder.rejections
    assert refusal.code.name == "TENSOR_KIND" and refusal.reason.endswith("OfUser")


@pytest.mark.parametrize("kind", [torch.nn.Parameter, torch.nn.Buffer])
def test_operands_of_classes_of_torch(kind):
    operands = [kind(torch.randn(2, 3, n, 4, dtype=torch.float64)) for n in (5, 7, 7)]
    assert len(recorded(lambda q, k, v: F.silu(q @ k.mT) @ v, *operands).matches) == 1


def test_fp16_scores_past_the_range_are_finite():
    """See docs/numerics.md, NaN and infinity."""
    attention = lambda q, k, v: F.silu(q @ k.mT) @ v
    operands = [torch.full((1, 2, n, 4), x).half() for n, x in ((5, 300.0), (7, 300.0), (7, 1e-3))]
    recorder = Recorder()
    result = torch.compile(attention, backend=recorder)(*operands).double()
    assert len(recorder.matches) == 1
    assert attention(*operands).isinf().all()
    exact = attention(*(x.double() for x in operands))
    torch.testing.assert_close(result, exact, rtol=1e-2, atol=0)


def test_attention_under_vmap_names_the_transform():
    def attention(q, k, v):
        return torch.vmap(lambda q, k, v: F.silu(q @ k.mT) @ v)(q, k, v)

    recorder = refused({"OPAQUE_CALL"}, attention)
    assert "function transform (vmap, grad)" in recorder.why()


@pytest.mark.parametrize(
    "equation", ["bhnd,bhmd", "...nd,...md", "bhnd,bhmd->bhnm", "nhbd,nhcd->nhbc"]
)
def test_einsum_with_other_letters(equation):
    def attention(q, k, v):
        s = torch.einsum(equation, q, k)
        return F.silu(s) @ v if s.shape == (2, 3, 5, 7) else s.sum() * v

    judge(attention)


@is_fused({**HEADS, "cache": "const: b h 2*m d"}, training=False)
def test_region_after_a_mutated_argument(q, k, v, cache):
    cache[:, :, :7] = k
    return F.silu(q @ cache.mT) @ torch.cat([v, v], 2)


@is_exact()
def test_deep_program(q, k, v):
    """A hundred steps between the products."""
    s = q @ k.mT
    for i in range(50):
        s = torch.tanh(s) * (1.0 + i * 1e-3)
    return s @ v
