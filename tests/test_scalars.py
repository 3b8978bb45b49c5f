"""scalars: score_mod and mask_mod have 0-dim arguments, as under flex_attention."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

import gdpa_inductor
from gdpa_inductor import scalars
from tests._recorder import Recorder

# As many samples as heads, so that an index in the wrong dim has the right shape.
B, H, M, N, D = 2, 2, 5, 6, 4
Q = torch.randn(B, H, M, D, dtype=torch.float64)
K, V = torch.randn(2, B, H, N, D, dtype=torch.float64)
PER_HEAD = torch.tensor([[0.5, 2.0, -1.0], [1.5, -0.3, 0.8]], dtype=torch.float64)
PER_SAMPLE = torch.randn(B, 3, dtype=torch.float64)
TABLE = torch.randn(H, 2 * (M + N), dtype=torch.float64)
BIAS = torch.randn(B, 1, M, N, dtype=torch.float64)
VALID = torch.rand(B, N) > 0.4
WHOLE = torch.rand(B, 1, M, N) > 0.4
DOCUMENT = torch.tensor([0, 0, 1, 1, 2, 2])
LENGTHS, TARGETS = torch.tensor([6, 4]), torch.tensor([1, 2])
NO = None


def of_score(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda s, b, h, i, j: function(s)


def local_2d(b, h, i, j):
    """Neighbours on a grid of rows of 3."""
    return ((i // 3 - j // 3).abs() <= 1) & ((i % 3 - j % 3).abs() <= 1)


def hstu(b, h, i, j):
    history = (LENGTHS - TARGETS)[b]
    row, column = torch.minimum(i, history), torch.minimum(j, history)
    return (row > column) | (i == j)


# name: (score_mod, mask_mod). All become one program.
FUSED: dict[str, tuple[Callable | None, Callable | None]] = {
    "chained int": (lambda s, b, h, i, j: torch.sigmoid(s * PER_HEAD[h][0]), NO),
    "chained ints and indices": (lambda s, b, h, i, j: F.silu(s + BIAS[b][0][i][j]), NO),
    "index behind an int": (lambda s, b, h, i, j: F.silu(s) * PER_HEAD[0][h], NO),
    "chained mask": (of_score(F.relu), lambda b, h, i, j: VALID[b][j]),
    "mask of four": (of_score(F.relu), lambda b, h, i, j: WHOLE[b][0][i][j]),
    "two masks": (of_score(F.relu), lambda b, h, i, j: VALID[b][j] & WHOLE[b, 0, i, j] & (i >= j)),
    "sum of a row": (lambda s, b, h, i, j: torch.sigmoid(s + PER_SAMPLE[b].sum()), NO),
    "max of a row": (lambda s, b, h, i, j: torch.sigmoid(s - PER_SAMPLE[b].max()), NO),
    "any of a row": (of_score(F.silu), lambda b, h, i, j: VALID[b].any() & (i >= j)),
    "index of an int alone": (lambda s, b, h, i, j: F.silu(s * PER_HEAD[1][2]), NO),
    "sum of a whole table": (lambda s, b, h, i, j: torch.sigmoid(s * PER_SAMPLE.sum()), NO),
    "alibi": (lambda s, b, h, i, j: F.silu(s + PER_HEAD[h, 1] * (j - i)), NO),
    "relative": (lambda s, b, h, i, j: F.gelu(s + TABLE[h, i - j + N]), NO),
    "relative, chained": (lambda s, b, h, i, j: F.gelu(s + TABLE[h][i - j + N]), NO),
    "softcap": (of_score(lambda s: torch.sigmoid(3 * torch.tanh(s / 3))), NO),
    "power": (of_score(lambda s: torch.sigmoid(s) ** 2), NO),
    "difference": (of_score(lambda s: 1 - torch.sigmoid(s)), NO),
    "quotient": (of_score(lambda s: 1 / (1 + torch.exp(-s))), NO),
    "branches": (
        lambda s, b, h, i, j: torch.where(
            h % 2 == 0, torch.relu(s), torch.where(j > i, F.silu(s), 0.5 * s)
        ),
        NO,
    ),
    "branch on a look-up": (
        lambda s, b, h, i, j: torch.where(VALID[b][j], s * PER_HEAD[h][2], torch.sigmoid(s)), NO,
    ),
    "window": (of_score(F.silu), lambda b, h, i, j: (i >= j) & (i - j <= 2)),
    "prefix": (of_score(F.silu), lambda b, h, i, j: (j < LENGTHS[b] - 3) | (i >= j)),
    "documents": (of_score(F.silu), lambda b, h, i, j: DOCUMENT[i] == DOCUMENT[j]),
    "grid": (of_score(F.relu), local_2d),
    "hstu": (of_score(lambda s: F.silu(s) / N), hstu),
    "arithmetic of a table first": (lambda s, b, h, i, j: F.silu(s) * (2 * PER_HEAD + 1)[h, 0], NO),
    "dtype of the score": (
        lambda s, b, h, i, j: s.sigmoid() * torch.tensor(0.5, dtype=s.dtype, device=s.device), NO,
    ),
}  # fmt: skip
# Right, and not fused: mapped by torch.vmap, or no function of the score.
MAPPED: dict[str, tuple[Callable | None, Callable | None]] = {
    "product of two rows": (
        lambda s, b, h, i, j: torch.sigmoid(s * torch.dot(PER_HEAD[h], PER_SAMPLE[b])), NO,
    ),
    "sum of a score": (of_score(lambda s: torch.sigmoid(s).sum()), NO),
    "softmax of a row": (
        lambda s, b, h, i, j: torch.sigmoid(s) * PER_HEAD[h].softmax(-1)[1], NO,
    ),
    "shape of a score": (of_score(lambda s: torch.sigmoid(s) + s.dim() + len(s.shape)), NO),
    "stacked": (
        lambda s, b, h, i, j: torch.stack([torch.relu(s), PER_HEAD[h][0]]).amax(), NO,
    ),
    "a row plus a row": (
        lambda s, b, h, i, j: torch.sigmoid(s) * (PER_HEAD[h] + PER_SAMPLE[b]).sum(), NO,
    ),
    "only look-ups": (lambda s, b, h, i, j: PER_HEAD[h][0] * PER_SAMPLE[b, 1], NO),
    "none of the arguments": (lambda s, b, h, i, j: PER_HEAD.sum().relu(), NO),
}  # fmt: skip
# flex_attention and torch.vmap cannot be compiled with them either.
EAGER: dict[str, tuple[Callable | None, Callable | None]] = {
    "slice": (lambda s, b, h, i, j: torch.sigmoid(s + PER_HEAD[h, 1:].sum()), NO),
    "an index last": (lambda s, b, h, i, j: torch.sigmoid(s + PER_SAMPLE.T[:, b].sum()), NO),
}


def halved(s: Tensor, *_: Tensor) -> Tensor:
    """Mapped after the write, so that it would be halved twice."""
    s *= 0.5
    return torch.stack([s, s * 0]).amax(0)


def shifted(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    i += 5
    return F.silu(s) / (i + 1)


def by_an_alias(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    i.to(i.dtype).add_(5)
    return F.silu(s) / (i + 1)


def causal(b, h, i, j):
    return i >= j


# A score and its indices are the mod's own, also where it writes into them. Not fused then.
WRITING: dict[str, tuple[Callable | None, Callable | None]] = {
    "score in place": (halved, NO),
    "index in place": (shifted, causal),
    "alias of an index in place": (by_an_alias, causal),
    "inplace=True": (of_score(lambda s: F.relu(s, inplace=True) + torch.stack([s]).sum()), NO),
}
ALL = FUSED | MAPPED | EAGER


def loop(
    q: Tensor, k: Tensor, v: Tensor, score_mod: Callable | None, mask_mod: Callable | None
) -> Tensor:
    """One score after the other, with arguments of no dims."""
    weight = torch.zeros(q.shape[0], q.shape[1], q.shape[2], k.shape[2], dtype=q.dtype)
    for place in itertools.product(*map(range, weight.shape)):
        b, h, i, j = map(torch.tensor, place)
        if mask_mod is not None and not mask_mod(b, h, i, j):
            continue
        score = q[place[0], place[1], place[2]] @ k[place[0], place[1], place[3]]
        weight[place] = score if score_mod is None else score_mod(score, b, h, i, j)
    return weight @ v


@pytest.mark.parametrize("key_heads", [H, 1], ids=["heads", "grouped heads"])
@pytest.mark.parametrize("name", ALL)
def test_each_score_on_its_own(name: str, key_heads: int) -> None:
    score_mod, mask_mod = ALL[name]
    mods = {"score_mod": score_mod, "mask_mod": mask_mod, "enable_gqa": key_heads < H}
    k, v = K[:, :key_heads], V[:, :key_heads]

    def function(q, k, v):
        return gdpa_inductor.attention(q, k, v, **mods)

    wanted = loop(Q, k.expand_as(K), v.expand_as(V), score_mod, mask_mod)
    torch.testing.assert_close(function(Q, k, v), wanted)
    if name in EAGER:
        return
    recorder = Recorder()
    actual = torch.compile(function, backend=recorder, fullgraph=True)(Q, k, v)
    torch.testing.assert_close(actual, wanted)
    assert len(recorder.matches) == (name in FUSED), recorder.why()


@pytest.mark.parametrize("name", WRITING)
def test_a_mod_may_write_into_its_arguments(name: str) -> None:
    score_mod, mask_mod = WRITING[name]

    def function(q, k, v):
        return gdpa_inductor.attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod)

    wanted = loop(Q, K, V, score_mod, mask_mod)
    for run in (function, torch.compile(function, backend=Recorder())):
        torch.testing.assert_close(run(Q, K, V), wanted)


@pytest.mark.parametrize("name", sorted({*FUSED, *MAPPED} - {"hstu"}))
def test_flex_attention_calls_them_so(name: str) -> None:
    score_mod, mask_mod = ALL[name]

    def scored(s, b, h, i, j):
        """Softmax of the logarithm of a positive weight: the weight over their sum."""
        value = s if score_mod is None else score_mod(s, b, h, i, j)
        masked = value if mask_mod is None else torch.where(mask_mod(b, h, i, j), value, 0.0)
        return torch.log(masked.square() + 1e-3)

    def weight(s, b, h, i, j):
        return torch.exp(scored(s, b, h, i, j))

    total = gdpa_inductor.attention(Q, K, torch.ones_like(V), score_mod=weight)
    actual = gdpa_inductor.attention(Q, K, V, score_mod=weight) / total
    wanted = flex_attention(Q, K, V, score_mod=scored, scale=1.0)
    torch.testing.assert_close(actual, wanted, rtol=1e-6, atol=1e-6)


JAGGED = [
    "chained int", "chained mask", "chained ints and indices", "sum of a row", "relative, chained",
    "branch on a look-up", "product of two rows", "any of a row",
]  # fmt: skip


@pytest.mark.parametrize("nested", [False, True], ids=["jagged", "nested"])
@pytest.mark.parametrize("name", JAGGED)
def test_jagged(name: str, nested: bool) -> None:
    score_mod, mask_mod = ALL[name]
    cu, lengths = torch.tensor([0, 3, 5]), (3, 2)
    q, k, v = torch.randn(3, 5, H, D, dtype=torch.float64)

    def function(q, k, v, cu):
        mods = {"score_mod": score_mod, "mask_mod": mask_mod}
        if nested:
            operands = [torch.nested.nested_tensor_from_jagged(t, cu) for t in (q, k, v)]
            return gdpa_inductor.attention(*operands, **mods).values()
        return gdpa_inductor.attention(
            q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=5, max_seqlen_k=5, **mods
        )

    # `b` counts the sequences, and each is a sample of its own for the loop.
    parts = []
    for b, (start, length) in enumerate(zip((0, 3), lengths)):
        own = [t[start : start + length].transpose(0, 1)[None] for t in (q, k, v)]
        at = torch.tensor(b)
        of_it = score_mod and (lambda s, _, h, i, j, at=at: score_mod(s, at, h, i, j))
        mask_of_it = mask_mod and (lambda _, h, i, j, at=at: mask_mod(at, h, i, j))
        parts.append(loop(*own, of_it, mask_of_it)[0].transpose(0, 1))
    wanted = torch.cat(parts)
    torch.testing.assert_close(function(q, k, v, cu), wanted)
    recorder = Recorder()
    actual = torch.compile(function, backend=recorder)(q, k, v, cu)
    torch.testing.assert_close(actual, wanted)
    assert len(recorder.matches) == (name in FUSED), recorder.why()


def test_gradients_reach_what_is_looked_up() -> None:
    slopes, rows = PER_HEAD.clone().requires_grad_(), PER_SAMPLE.clone().requires_grad_()
    q = Q.clone().requires_grad_()

    def mod(s, b, h, i, j):
        return torch.sigmoid(s * slopes[h][0] + rows[b].sum())

    def function(q):
        return gdpa_inductor.attention(q, K, V, score_mod=mod)

    scores = q @ K.mT * slopes[:, 0].view(H, 1, 1) + rows.sum(1).view(B, 1, 1, 1)
    operands = [q, slopes, rows]
    wanted = torch.autograd.grad((torch.sigmoid(scores) @ V).square().sum(), operands)
    recorder = Recorder()
    for run in (function, torch.compile(function, backend=recorder, fullgraph=True)):
        torch.testing.assert_close(torch.autograd.grad(run(q).square().sum(), operands), wanted)
    assert len(recorder.matches) == 1, recorder.why()


# What no mod may return


@pytest.mark.parametrize(
    ("mods", "message"),
    [
        ({"score_mod": lambda s, b, h, i, j: 0.5}, "score_mod must return a tensor, not float"),
        ({"score_mod": lambda s, b, h, i, j: True}, "score_mod must return a tensor, not bool"),
        ({"score_mod": lambda s, b, h, i, j: None}, "score_mod must return a tensor, not NoneType"),
        ({"score_mod": lambda s, b, h, i, j: s + PER_HEAD[h]}, r"dims, not of shape \(3,\)"),
        ({"score_mod": lambda s, b, h, i, j: PER_HEAD[h]}, r"without dims, not of shape \(3,\)"),
        ({"score_mod": lambda s, b, h, i, j: PER_HEAD}, r"without dims, not of shape \(2, 3\)"),
        ({"score_mod": lambda s, b, h, i, j: s[None]}, r"without dims, not of shape \(1,\)"),
        ({"mask_mod": lambda b, h, i, j: VALID[b]}, r"bool without dims, not of shape \(6,\)"),
        ({"mask_mod": lambda b, h, i, j: i - j}, "a tensor of torch.bool, not torch.int64"),
    ],
)  # fmt: skip
def test_other_results_are_told(mods: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        gdpa_inductor.attention(Q, K, V, **mods)


def test_a_condition_in_python_is_told() -> None:
    def mod(s, b, h, i, j):
        return torch.relu(s) if h > 0 else torch.sigmoid(s)

    with pytest.raises(RuntimeError, match="data-dependent control flow"):
        gdpa_inductor.attention(Q, K, V, score_mod=mod)


@pytest.mark.parametrize("draw", [lambda s: torch.rand_like(s), lambda s: torch.rand(())])
def test_each_score_draws_its_own_number(draw: Callable) -> None:
    weight = gdpa_inductor.attention(
        Q, K, torch.eye(N, dtype=Q.dtype).expand(B, H, N, N), score_mod=of_score(draw)
    )
    assert weight.unique().numel() == weight.numel()


def test_a_function_that_no_program_knows_is_told() -> None:
    def run(q, k, v):
        return gdpa_inductor.attention(q, k, v, score_mod=of_score(torch.special.erfcx))

    (refusal,) = gdpa_inductor.explain(run)(Q, K, V).rejections
    assert refusal.code.name == "POINTWISE_OP" and "erfcx" in refusal.reason


# Each function that is called at once


def _functions() -> dict[str, Callable]:
    """By name, the functions, methods and operators that are taken to compute with elements."""
    functions = {}
    for place in (torch, F, Tensor, torch._C._special):
        for name in sorted(scalars.ELEMENTWISE):
            of_objects = (name.startswith("__") or name == "rand") and place is not Tensor
            if callable(getattr(place, name, None)) and not of_objects:
                functions[f"{place.__name__}.{name}"] = getattr(place, name)
    return functions


FUNCTIONS = _functions()
FLOATS = [torch.rand(*shape, dtype=torch.float64) + 0.1 for shape in ((2, 1, 3, 1), (1, 2, 1, 3))]
WHOLES = [torch.randint(1, 4, shape) for shape in ((2, 1, 3, 1), (1, 2, 1, 3))]
TRUTHS = [x > 1 for x in WHOLES]
AXES = [(0, 2), (1, 3)]


def calls(function: Callable) -> list[tuple[Callable, list[Tensor]]]:
    """The ways to call a function that work with elements."""
    ways: list[Callable] = [
        lambda x, y: function(x), lambda x, y: function(x, y), lambda x, y: function(x, 2),
        lambda x, y: function(x, x, y), lambda x, y: function(x > 1, x, y),
        lambda x, y: function(x, y > 1, 2.0), lambda x, y: function(x, 1, 2),
        lambda x, y: function(x, torch.float32),
    ]  # fmt: skip
    working = []
    for way, operands in itertools.product(ways, (FLOATS, WHOLES, TRUTHS)):
        try:
            result = way(*(x.clone().expand(2, 2, 3, 3).contiguous() for x in operands))
        except (TypeError, RuntimeError, ValueError, IndexError):
            continue
        if isinstance(result, Tensor) and result.shape == (2, 2, 3, 3):
            working.append((way, operands))
    return working


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_elements(name: str) -> None:
    ways = calls(FUNCTIONS[name])
    assert ways, f"{name} was not called"
    for way, operands in ways:
        copies = [x.clone() for x in operands]
        try:
            whole = scalars.at_all_scores(way, copies, AXES)
        except RuntimeError:  # in place, into what would have to broadcast
            assert name.endswith("_") or ".__i" in name
            continue
        whole = whole.expand(2, 2, 3, 3)
        for place in itertools.product(range(2), range(2), range(3), range(3)):
            x = operands[0][place[0], 0, place[2], 0].clone()
            y = operands[1][0, place[1], 0, place[3]].clone()
            torch.testing.assert_close(whole[place], way(x, y), equal_nan=True)
