"""The chunked operators: right in chunks of every form, by the error rule, in bounded memory."""

import re
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from gdpa_inductor._compat import dynamo
from gdpa_inductor.kernels.blocked import block_pass, loop, operands
from gdpa_inductor.program.score_mod import ScoreMod
from tests.activations import ACTIVATIONS

from .operators import CHUNKED, FORMS, as_they_are, canonical, in_chunks

forward_op, backward_op = CHUNKED.forward, CHUNKED.backward
same_as_reference = CHUNKED.same_as_reference
uncompiled = pytest.fixture(as_they_are)
SILU = "silu(mul(s,0.125))"


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with in_chunks(request.param, monkeypatch):
        yield


@pytest.mark.parametrize("form", ["some units", "squares"], indirect=True)
@pytest.mark.parametrize("text", [SILU, "where(ge(q_idx,kv_idx),silu(s),0.0)", "s", "2.0"])
def test_one_kernel_for_scores_and_program(form, uncompiled, text, monkeypatch):
    """As NVIDIA GPUs have it for 16 bits: P and dS are made anew for each chunk."""
    monkeypatch.setattr(loop, "fixed", lambda work, *_: work)
    monkeypatch.setattr(operands, "fuses", lambda *_: True)
    same_as_reference(text)


STORED = {
    "silu": SILU,
    "causal": "where(ge(q_idx,kv_idx),silu(s),0.0)",
    "indices": "mul(relu(s),float(add(add(b,h),mul(q_idx,kv_idx))))",
    "no score": "2.0",
    "linear": "s",
    "bias of heads": "a0:f[h,q_idx,kv_idx]; silu(add(s,a0))",
    "bias of a scaled score": "a0:f[-,h,q_idx,kv_idx]; silu(add(mul(s,0.125),a0))",
    "scaled bias": "a0:f[b,h,q_idx,kv_idx]; silu(add(mul(s,a0),a0))",
    "mask and gate": "a0:b[b,-,q_idx,kv_idx]; a1:f[h]; mul(where(a0,silu(s),0.0),a1)",
    "scalar and lengths": "a0:i[b]; where(lt(kv_idx,a0),div(silu(s),float(i0)),0.0)",
    "apart": "a0:f[kv_idx]; add(silu(s),a0)",
    "dropout": "a0:i[]; mul(silu(s),float(ge(random16(a0,b,h,q_idx,kv_idx),32768)))",
}


@pytest.fixture
def stored(uncompiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel computes P and dS, as Hopper has it in 16 bits; here by its formula."""
    monkeypatch.setattr(loop, "fixed", lambda work, *_: work)
    monkeypatch.setattr(operands, "stores", lambda *_: True)


@pytest.mark.parametrize("form", ["some units", "rows of a unit"], indirect=True)
def test_p_and_ds_as_they_are_compiled(form, monkeypatch):
    """Twice, as later calls repeat what the first has recorded."""
    monkeypatch.setattr(operands, "stores", lambda *_: True)
    text = "where(ge(q_idx,kv_idx),silu(mul(s,0.25)),0.0)"

    def eager(query, key, value):
        weights = torch.nn.functional.silu(query @ key.mT * 0.25)
        return weights.tril() @ value

    given = [torch.randn(2, 4, n, 16, dtype=torch.bfloat16) for n in (37, 53, 53)]
    for _ in range(2):
        assert not CHUNKED.breach(canonical(text), eager, given)


@pytest.mark.parametrize("form", ["one chunk", "squares"], indirect=True)
def test_p_and_ds_of_a_program_with_row_sums(form, stored):
    text = canonical("a0:f[b,h,q_idx]; t0=tanh(s); r=mul(a0,abs(t0)); t0")
    grad_out, query, key, value = (
        torch.randn(2, 4, n, 16, dtype=torch.float64) for n in (37, 37, 53, 53)
    )
    gate = torch.randn(2, 4, 37, dtype=torch.float64)
    given = (grad_out, query, key, value, [gate], [], text, [True] * 4)
    wanted = torch.ops.gdpa.attention_backward(*given, "")
    torch.testing.assert_close(backward_op(*given), wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_p_and_ds_by_one_kernel(form, stored, name):
    """Every kind of operand, in any chunks."""
    text = STORED[name]
    sizes = {"b": 2, "h": 4, "q_idx": 37, "kv_idx": 53, "-": 1}
    made = {"f": torch.randn, "b": lambda shape, dtype: torch.rand(shape) < 0.6,
            "i": lambda shape, dtype: torch.randint(20, 53, shape)}  # fmt: skip
    aux = [
        made[spec.kind]([sizes[x] for x in spec.access], dtype=torch.float64)
        for spec in ScoreMod.parse(text).aux
    ]
    scalars = (3,) if "i0" in text else ()
    same_as_reference(text, aux=aux, scalars=scalars)
    same_as_reference(text, aux=aux, scalars=scalars, heads=(2, 1))


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
    sizes = ((150, 48), (100, 48), (100, 40))
    given = [torch.randn(2, 2, n, d, dtype=torch.float64).to(dtype) for n, d in sizes]

    def eager(query, key, value):
        return eager_act(query @ key.mT * 0.125) @ value

    breach = CHUNKED.breach(text, eager, given)
    assert not breach, f"{name}, {dtype}: {breach}"


@SQUARES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_error_rule_where_the_model_has_scores_in_fp32(form, dtype: torch.dtype):
    """`q.float() @ k.float().mT`: scores of 16 bits would be less exact."""
    text = canonical("relu(s)")
    given = [torch.randn(2, 2, n, 48).to(dtype) for n in (150, 100, 100)]

    def eager(query, key, value):
        wide = torch.promote_types(query.dtype, torch.float32)
        weight = torch.relu(query.to(wide) @ key.to(wide).mT)
        return weight.to(value.dtype) @ value

    breach = CHUNKED.breach(text, eager, given, fp32_scores=True)
    assert not breach, breach


def test_operators_pass_opcheck():
    query, key, value = (torch.randn(2, 2, 9, 8) for _ in range(3))
    aux = [torch.randn(9, 9)]
    text = str(ScoreMod.parse("a0:f[q_idx,kv_idx]; silu(add(s,a0))"))
    given = (query, key, value, aux, [], text)
    torch.library.opcheck(forward_op, given)
    torch.library.opcheck(backward_op, (torch.randn(2, 2, 9, 8), *given, [True] * 4))


def gated(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The attention of a gated attention unit: one head, values wider than queries."""
    return torch.relu(queries @ keys.mT / queries.shape[-2]).square() @ values


def allocated(code: str) -> list[list[str]]:
    """The sizes of what generated code allocates."""
    sizes = re.findall(r"empty_strided\w*\(\(([^)]*)\)", code)
    return [size.replace(" ", "").split(",") for size in sizes]


# How generated code calls the forward and the backward.
CALLS = "blocked_chunked_call(False)", "blocked_chunked_call(True)"


def step(model: Callable, given: Sequence[Tensor]) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in given]
    out = model(*leaves)
    return [out, *torch.autograd.grad(out, leaves, torch.ones_like(out))]


@pytest.mark.parametrize("dynamic", [False, True])
def test_wide_values_of_a_model_go_in_chunks(dynamic: bool):
    """Neither forward nor backward allocates M × N elements, and the programs nothing at all: P and
    dS replace S and dP."""
    given = [torch.randn(2, 96, width) for width in (32, 32, 512)]
    options = {"gdpa.kernel": "chunked", "gdpa.profit": False, "gdpa.expect": 1}
    model = torch.compile(gated, backend="gdpa", options=options, dynamic=dynamic)
    block_pass.RUNNERS.clear()
    block_pass._variant.cache_clear()
    with torch._inductor.config.patch(force_disable_caches=True):
        mine, codes = run_and_get_code(lambda: step(model, given))
    torch.testing.assert_close(mine, step(gated, given), rtol=1e-4, atol=1e-4)
    assert dynamo.counters["gdpa"]["lowered_chunked"] == 2
    assert dynamic or dynamo.counters["gdpa"]["chunked_launches"] == 3 + 6
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
