"""The chunked operators: right in chunks of every form, by the error rule, in bounded memory."""

import re
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from gdpa_inductor import lowerings
from gdpa_inductor._compat import dynamo
from gdpa_inductor.kernels.blocked import block_pass, chunks, loop, operands
from gdpa_inductor.program.score_mod import ScoreMod
from tests._judge import Results, difference, results
from tests.activations import ACTIVATIONS
from tests.lowerings.operators import Operators, canonical
from tests.lowerings.test_cpu import columns_first, gapped, strided

lowerings.register()
forward_op = torch.ops.gdpa.attention_chunked.default
backward_op = torch.ops.gdpa.attention_chunked_backward.default
OPERATORS = Operators(forward_op, backward_op)
same_as_reference = OPERATORS.same_as_reference
SILU = "silu(mul(s,0.125))"

# By name: bytes of scores of a chunk, bytes of sums, and the rows for which all columns are taken.
# The problems have 37 rows and 53 columns. fp64 takes 8 bytes forward, 16 backward.
FORMS = {
    "one chunk": (32 << 20, 28 << 20, 1024),
    "some units": (16 * 37 * 53 * 3, 28 << 20, 1024),
    "rows of a unit": (16 * 11 * 53, 28 << 20, 4),
    "squares": (16 * 20 * 20, 28 << 20, 1024),
    "a pass for each": (16 * 20 * 20, 1, 1024),
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    scores, sums, rows = FORMS[request.param]
    monkeypatch.setattr(chunks, "SCORES", scores)
    monkeypatch.setattr(chunks, "SUMS", sums)
    monkeypatch.setattr(chunks, "MIN_ROWS", rows)
    monkeypatch.setattr(chunks, "ALIGNED", 4)
    chunks.passes.cache_clear()
    yield request.param
    chunks.passes.cache_clear()


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs run as they are: compiling each for every form takes minutes."""
    monkeypatch.setattr(loop, "compiled", lambda work, *_, **__: work)


@pytest.mark.parametrize("rearrange", [lambda t: t, strided, columns_first, gapped])
@pytest.mark.parametrize("heads", [(4, 4), (2, 1), (1, 4), (2, 2), (1, 1)])
def test_layouts_and_shared_heads(form, uncompiled, rearrange, heads):
    same_as_reference(SILU, rearrange=rearrange, heads=heads)


def test_key_and_value_heads_that_divide_only_the_query_heads(form, uncompiled):
    same_as_reference(SILU, sizes=(2, 6, 37, 53), heads=(2, 3))


@pytest.mark.parametrize(
    "batches", [(1, 3, 3), (3, 1, 1), (3, 3, 1), (1, 1, 3), (1, 1, 1), (1, 3, 1)]
)
def test_operands_that_all_batches_share(form, uncompiled, batches):
    same_as_reference(SILU, sizes=(max(batches), 4, 37, 53), batches=batches)
    same_as_reference(SILU, sizes=(max(batches), 1, 37, 53), batches=batches, heads=(1, 1))


@pytest.mark.parametrize("sizes", [(5, 1, 37, 53), (1, 5, 37, 53), (1, 1, 1, 90), (3, 2, 90, 1)])
def test_sizes(form, uncompiled, sizes):
    same_as_reference(SILU, sizes=sizes, heads=(sizes[1],) * 2)


@pytest.mark.parametrize("sizes", [(2, 4, 0, 5), (2, 4, 5, 0), (0, 4, 5, 5)])
def test_nothing_to_do(sizes):
    same_as_reference(SILU, sizes=sizes)


@pytest.mark.parametrize("needs", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1)])
def test_some_gradients(form, uncompiled, needs):
    same_as_reference(SILU, needs=[bool(need) for need in needs])


PROGRAMS = {
    "causal": ("where(ge(q_idx,kv_idx),silu(s),0.0)", [], ()),
    "bias": ("a0:f[h,q_idx,kv_idx]; silu(add(s,a0))", [(4, 37, 53)], ()),
    "own bias": ("a0:f[b,h,q_idx,kv_idx]; silu(add(s,a0))", [(2, 4, 37, 53)], ()),
    "row, key and head": (
        "a0:f[b,q_idx]; a1:f[kv_idx]; a2:f[h]; mul(a2,sigmoid(add(mul(s,a0),a1)))",
        [(2, 37), (53,), (4,)],
        (),
    ),
    "scale": ("a0:f[]; mul(relu(s),a0)", [()], ()),
    "sizes": ("div(silu(s),float(i0))", [], (53,)),
    "indices": ("mul(relu(s),float(add(add(b,h),mul(q_idx,kv_idx))))", [], ()),
    "no score": ("a0:f[q_idx,kv_idx]; a0", [(37, 53)], ()),
    "one value": ("2.0", [], ()),
    "identity": ("s", [], ()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_and_gradients_of_their_operands(form, uncompiled, name):
    text, shapes, scalars = PROGRAMS[name]
    aux = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    same_as_reference(text, aux=aux, scalars=scalars)


@pytest.mark.parametrize("form", ["some units", "squares"], indirect=True)
@pytest.mark.parametrize("text", [SILU, "where(ge(q_idx,kv_idx),silu(s),0.0)", "s", "2.0"])
def test_one_kernel_for_scores_and_program(form, uncompiled, text, monkeypatch):
    """As NVIDIA GPUs have it for 16 bits: P and dS are made anew for each chunk."""
    monkeypatch.setattr(loop, "fixed", lambda work, *_: work)
    monkeypatch.setattr(operands, "fuses", lambda *_: True)
    same_as_reference(text)


def test_masks_that_are_tensors(form, uncompiled):
    text = "a0:b[b,kv_idx]; a1:i[q_idx]; where(and(a0,ge(a1,kv_idx)),silu(s),0.0)"
    same_as_reference(text, aux=[torch.rand(2, 53) < 0.5, torch.randint(0, 53, (37,))])


def test_operands_of_two_precisions(form, uncompiled):
    same_as_reference(SILU, dtypes=(torch.float32, torch.float64), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("form", ["some units", "squares"], indirect=True)
@pytest.mark.parametrize("vary", [False, True])
def test_lengths_that_vary(form, vary: bool):
    given = [torch.randn(2, 4, n, 16, dtype=torch.float64) for n in (37, 53, 53, 37)]
    query, key, value, grad_out = given
    operands = (query, key, value, [], [], canonical(SILU))
    out = forward_op(*operands, lengths_vary=vary)
    grads = backward_op(grad_out, *operands, [True] * 3, lengths_vary=vary)
    want = torch.ops.gdpa.attention(*operands, "")
    torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-10)
    wanted = torch.ops.gdpa.attention_backward(grad_out, *operands, [True] * 3, "")
    torch.testing.assert_close(grads, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", ["some units", "squares"], indirect=True)
def test_sums_have_one_order(form):
    given = [torch.randn(2, 4, n, 16, dtype=torch.bfloat16) for n in (37, 53, 53, 37)]
    query, key, value, grad_out = given

    def step() -> list[Tensor]:
        operands = (query, key, value, [], [], canonical(SILU))
        return [forward_op(*operands), *backward_op(grad_out, *operands, [True] * 3)]

    first = step()
    assert all(torch.equal(a, b) for _ in range(3) for a, b in zip(step(), first, strict=True))


JAGGED = {
    "both": (True, True),
    "queries": (True, False),
    "keys": (False, True),
}


@pytest.mark.parametrize("sides", JAGGED)
def test_jagged_sides(form, uncompiled, sides: str):
    jagged_query, jagged_key = JAGGED[sides]
    offsets = torch.tensor([0, 9, 9, 30])
    f64 = torch.float64
    query = torch.randn(*((30, 4) if jagged_query else (3, 4, 21)), 12, dtype=f64)
    key, value = (
        torch.randn(*((30, 4) if jagged_key else (3, 4, 21)), d, dtype=f64) for d in (12, 20)
    )
    text = canonical("a0:f[b]; add(sigmoid(s),a0)")
    lengths = (
        offsets if jagged_query else None, offsets if jagged_key else None,
        21 * jagged_query, 21 * jagged_key,
    )  # fmt: skip
    operands = (query, key, value, [torch.randn(3, dtype=f64)], [], text)
    out = forward_op(*operands, *lengths)
    want = torch.ops.gdpa.attention(*operands, "", *lengths)
    torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-10)
    grad_out = torch.randn_like(out)
    mine = backward_op(grad_out, *operands, [True] * 4, *lengths)
    theirs = torch.ops.gdpa.attention_backward(grad_out, *operands, [True] * 4, "", *lengths)
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


# Each is compiled twice, some seconds each; the rest resemble others.
FAST = ("silu", "relu_squared")
SQUARES = pytest.mark.parametrize("form", ["squares"], indirect=True)


@SQUARES
@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in ACTIVATIONS]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_error_rule(form, name: str, dtype: torch.dtype):
    """Outputs and gradients; the model's scores have the precision of its operands."""
    eager_act, program = ACTIVATIONS[name]
    text = canonical(re.sub(r"\bs\b", "mul(s,0.125)", program))
    exact = [
        torch.randn(2, 2, n, d, dtype=torch.float64) for n, d in ((150, 48), (100, 48), (100, 40))
    ]
    rounded = [t.to(dtype) for t in exact]

    def leaves_and_results(function, dtype) -> Results:
        leaves = [t.to(dtype).requires_grad_() for t in rounded]
        return results(function, dict(zip(("query", "key", "value"), leaves, strict=True)))

    def eager(query, key, value):
        return eager_act(query @ key.mT * 0.125) @ value

    def chunked(query, key, value):
        return OPERATORS.apply(text, query, key, value)

    breach = difference(
        leaves_and_results(chunked, dtype),
        leaves_and_results(eager, dtype),
        leaves_and_results(eager, torch.float64),
    )
    assert not breach, f"{name}, {dtype}: {breach}"


@SQUARES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_error_rule_where_the_model_has_scores_in_fp32(form, dtype: torch.dtype):
    """`q.float() @ k.float().mT`: scores of 16 bits would be less exact."""
    text = canonical("relu(s)")
    given = [torch.randn(2, 2, n, 48).to(dtype) for n in (150, 100, 100)]

    def leaves_and_results(function, dtype) -> Results:
        leaves = [t.to(dtype).requires_grad_() for t in given]
        return results(function, dict(zip(("query", "key", "value"), leaves, strict=True)))

    def eager(query, key, value):
        wide = torch.promote_types(query.dtype, torch.float32)
        weight = torch.relu(query.to(wide) @ key.to(wide).mT)
        return weight.to(value.dtype) @ value

    def chunked(query, key, value):
        return OPERATORS.apply(text, query, key, value, fp32_scores=True)

    breach = difference(
        leaves_and_results(chunked, dtype),
        leaves_and_results(eager, dtype),
        leaves_and_results(eager, torch.float64),
    )
    assert not breach, breach


def test_operators_pass_opcheck():
    query, key, value = (torch.randn(2, 2, 9, 8) for _ in range(3))
    aux = [torch.randn(9, 9)]
    text = str(ScoreMod.parse("a0:f[q_idx,kv_idx]; silu(add(s,a0))"))
    given = (query, key, value, aux, [], text)
    torch.library.opcheck(forward_op, given)
    torch.library.opcheck(backward_op, (torch.randn(2, 2, 9, 8), *given, [True] * 4))


def compiled_step(model: Callable, given: Sequence[Tensor], **options) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in given]
    named = {f"gdpa.{name}": value for name, value in options.items()}
    out = torch.compile(model, backend="gdpa", options=named)(*leaves)
    return [out, *torch.autograd.grad(out, leaves, torch.ones_like(out))]


def gated(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The attention of a gated attention unit: one head, values wider than queries."""
    return torch.relu(queries @ keys.mT / queries.shape[-2]).square() @ values


def test_wide_values_of_a_model_go_in_chunks():
    given = [torch.randn(2, 64, width) for width in (32, 32, 512)]
    mine = compiled_step(gated, given, kernel="chunked", profit=False, expect=1)
    assert dynamo.counters["gdpa"]["lowered_chunked"] == 2
    assert dynamo.counters["gdpa"]["chunked_launches"] == 3 + 6
    leaves = [t.detach().requires_grad_() for t in given]
    out = gated(*leaves)
    want = [out, *torch.autograd.grad(out, leaves, torch.ones_like(out))]
    torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-4)


def allocated(code: str) -> list[list[str]]:
    """The sizes of what generated code allocates."""
    sizes = re.findall(r"empty_strided\w*\(\(([^)]*)\)", code)
    return [size.replace(" ", "").split(",") for size in sizes]


# How generated code calls the forward and the backward.
CALLS = "blocked_chunked_call(False)", "blocked_chunked_call(True)"


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_generated_code_has_no_scores(dynamic: bool):
    """Neither forward nor backward allocates M × N elements, and the programs nothing at all: P and
    dS replace S and dP."""
    given = [torch.randn(2, 96, width, requires_grad=True) for width in (32, 32, 512)]
    options = {"gdpa.kernel": "chunked", "gdpa.profit": False}
    model = torch.compile(gated, backend="gdpa", options=options, dynamic=dynamic)
    block_pass.RUNNERS.clear()
    block_pass._variant.cache_clear()
    with torch._inductor.config.patch(force_disable_caches=True):
        _, codes = run_and_get_code(lambda: model(*given).sum().backward())
    for name in CALLS:
        (code,) = (code for code in codes if name in code)
        assert not [size for size in allocated(code) if len(size) - len(set(size)) > 0]
    programs = [code for code in codes if not any(name in code for name in CALLS)]
    assert len(programs) == 2
    assert not any(map(allocated, programs))


@pytest.mark.parametrize("fp32", [False, True])
def test_a_product_in_fp32_has_scores_in_fp32(fp32: bool):
    """The op gets the operands before the upcast; that must not make the scores less exact."""

    def model(query, key, value):
        query, key = (query.float(), key.float()) if fp32 else (query, key)
        return torch.relu(query @ key.mT).to(value.dtype) @ value

    given = [torch.randn(1, 64, 32, dtype=torch.bfloat16) for _ in range(3)]
    options = {"gdpa.kernel": "chunked", "gdpa.profit": False, "gdpa.expect": 1}
    with torch.no_grad():
        found = torch.compile(model, backend="gdpa", options=options)
        _, codes = run_and_get_code(found, *given)
    (code,) = (code for code in codes if CALLS[0] in code)
    assert ("fp32_scores=True" in code) is fp32
