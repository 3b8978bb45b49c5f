"""Models with nothing to rewrite: every graph comes out node for node, and the report is silent.

The rows hold products enough. Only a candidate may be reported: a product that depends, through
pointwise, view or reduction ops, on another product of two activations. `quiet` rows have none.
"""

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor.options import Options
from tests._judge import compare
from tests._recorder import Recorder
from tests.operands import make_operands
from tests.patterns.rows import HEADS, SINGLE, rows

# Large enough that nothing is left alone for its size.
LARGE = {"b": 2, "h": 3, "n": 64, "m": 96, "d": 16, "e": 24}
ROWS: list[tuple] = []


def quiet(**specs: str):
    return lambda function: ROWS.append((function, specs, True)) or function


def candidate(**specs: str):
    return lambda function: ROWS.append((function, specs, False)) or function


SEQUENCE = {"x": "b n d", "up": "d 8", "down": "8 d", "w": "h d e", "router": "d h"}
rows(
    quiet,
    {**HEADS, **SEQUENCE, "weight": "8 d", "other": "d 8"},
    perceptron=lambda x, up, down: F.relu(x @ up) @ down,
    linear_layers=lambda x, weight, other: F.linear(F.gelu(F.linear(x, weight)), other),
    library_attention=lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    gram_matrix=lambda x: (x.mT @ x / x.shape[1]).square().mean(),
    mixture_by_einsum=lambda x, w, router: torch.einsum(
        "bnd,hde,bnh->bne", x, w, (x @ router).softmax(-1)
    ),
)
rows(
    quiet,
    {"x": "b d n n", "kernel": "e d 3 3", "y": "b n d", "w": "h d d"},
    convolution=lambda x, kernel: F.relu(F.conv2d(x, kernel, padding=1)).mean((2, 3)),
    bilinear=lambda y, w: torch.einsum("bnd,hde,bme->bhnm", y, w, y),
)
rows(
    candidate,
    {**HEADS, "x": "b n n"},
    softmax_attention=lambda q, k, v: (q @ k.mT / 2).softmax(-1) @ v,
    hard_attention=lambda q, k, v: F.one_hot((q @ k.mT).argmax(-1), k.shape[2]).to(v.dtype) @ v,
    matrix_power=lambda x: x @ x @ x,
)


@quiet(x="b n d", w="d d", u="d d")
def recurrence(x, w, u):
    state = torch.zeros_like(x[:, 0])
    for t in range(4):
        state = torch.tanh(x[:, t] @ w + state @ u)
    return state


@quiet(x="b d", y="b d")
def contrastive_loss(x, y):
    logits = F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).t() / 0.07
    return F.cross_entropy(logits, torch.arange(2))


@quiet(x="b n d")
def dot_interaction(x):
    z = torch.bmm(x, x.mT)
    i, j = torch.tril_indices(x.shape[1], x.shape[1], offset=-1)
    return torch.cat([x.flatten(1), z[:, i, j]], dim=1)


@quiet(x="b d", a="d 1", b="d 1")
def cross_network(x, a, b):
    """DeepCTR-Torch's: a layer's product reaches that of the next through a weight alone."""
    first = x.unsqueeze(2)
    state = first
    for weight in (a, b):
        state = first @ torch.tensordot(state, weight, dims=([1], [0])) + state
    return state.squeeze(2)


@quiet(x="n d", adjacency="const: n n", w1="d e", w2="e d")
def graph_convolution(x, adjacency, w1, w2):
    return adjacency @ F.relu(adjacency @ (x @ w1)) @ w2


@quiet(x="b n d", codes="m d")
def vector_quantisation(x, codes):
    distance = x.square().sum(-1, keepdim=True) - 2 * x @ codes.t() + codes.square().sum(-1)
    return codes[distance.argmin(-1)]


@quiet(x="b n d", w="d 1")
def attention_pooling(x, w):
    weights = (x @ w).softmax(1)
    return (weights * x).sum(1)


@candidate(**HEADS)
def linear_attention_normalised(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    total = torch.einsum("bhnd,bhd->bhn", q, k.sum(2))
    return (
        torch.einsum("bhnd,bhde->bhne", q, torch.einsum("bhmd,bhme->bhde", k, v)) / total[..., None]
    )


@candidate(q="b h n d", k="b h n d", v="b h n e")
def linear_attention_causal(q, k, v):
    state = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
    return torch.einsum("bhnd,bhnde->bhne", q, state)


@candidate(x="b n d")
def newton_schulz(x):
    x = x / (x.norm() + 1e-7)
    for _ in range(2):
        a = x @ x.mT
        b = -4.775 * a + 2.0315 * a @ a
        x = 3.4445 * x + b @ x
    return x


@candidate(x="b d 8 8", there="3*d d 1 1", back="d d 3 3", mean="const: d", variance="const: d")
def linear_attention_between_convolutions(x, there, back, mean, variance):
    """EfficientViT: what a layer's norm writes is nothing to the product of the next."""
    for _ in range(2):
        q, k, v = F.conv2d(x, there).flatten(2).mT.chunk(3, dim=2)
        y = (F.relu(q) @ (F.relu(k).mT @ v)).mT.unflatten(2, (8, 8))
        x = x + F.batch_norm(F.conv2d(y, back, padding=1), mean, variance.abs(), training=True)
    return x


@candidate(**SINGLE)
def nystrom(q, k, v):
    few_q, few_k = q[:, :2], k[:, :2]
    left, right = (q @ few_k.mT).softmax(-1), (few_q @ k.mT).softmax(-1)
    return left @ (right @ v)


@candidate(**HEADS)
def sinkhorn_attention(q, k, v):
    p = (q @ k.mT).exp()
    for _ in range(2):
        p = p / p.sum(-1, keepdim=True)
        p = p / p.sum(-2, keepdim=True)
    return p @ v


@candidate(**HEADS, sink="h 1 1")
def attention_with_a_sink(q, k, v, sink):
    s = q @ k.mT
    s = torch.cat([s, sink.expand(2, 3, q.shape[2], 1)], dim=-1)
    return s.softmax(-1)[..., :-1] @ v


@candidate(x="b n d", w="d d")
def kernel_regression(x, w):
    gram = torch.exp(-torch.cdist(x @ w, x)) + torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.solve(gram, x)


@pytest.mark.parametrize(
    ("function", "specs", "silent"), ROWS, ids=[function.__name__ for function, *_ in ROWS]
)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_untouched(function, specs, silent, dynamic):
    recorder = Recorder(Options())
    compiled = torch.compile(function, backend=recorder)
    operands = make_operands(specs, LARGE, dtype=torch.float32)
    marks = specs if dynamic else None
    fault = compare(function, compiled, operands, training=False, specs=marks)
    assert not fault
    assert not recorder.matches
    assert recorder.untouched
    assert not any(graph.guards_added for graph in recorder.graphs)
    if silent:
        assert not recorder.rejections, recorder.why()
    else:
        assert all(r.code.category.name in ("NOT_GDPA", "UNSUPPORTED") for r in recorder.rejections)
