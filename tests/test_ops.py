"""ops: the reference against the formula written out; torch's own checks of both ops; errors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gdpa_inductor.operands import aux_from_axes, aux_on_axes
from gdpa_inductor.program.expr import AXES, compute_dtype
from gdpa_inductor.program.score_mod import Aux, ScoreMod
from gdpa_inductor.rejection import GDPAError

OPCHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


@dataclass(frozen=True)
class Case:
    """Shapes of query, key, value, a program, and its operands as (kind, shape)."""

    program: str
    shapes: tuple[tuple[int, ...], ...] = ((2, 4, 5, 6), (2, 4, 7, 6), (2, 4, 7, 3))
    aux: tuple[tuple[str, tuple[int, ...]], ...] = ()
    scalars: tuple[int, ...] = ()

    def operands(self, dtype: torch.dtype = torch.float64) -> list:
        """Query, key, value, and a list of the others."""
        matrices = [torch.randn(s, dtype=dtype, requires_grad=True) for s in self.shapes]
        return [*matrices, [self.operand(kind, shape, dtype) for kind, shape in self.aux]]

    @staticmethod
    def operand(kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if kind == "f":
            return torch.randn(shape, dtype=dtype, requires_grad=True)
        drawn = torch.rand(shape) < 0.6
        return drawn if kind == "b" else drawn.long() * 3 + 1

    def call(self, operands: Sequence[Tensor]) -> Tensor:
        query, key, value, aux = operands
        scalars = list(self.scalars)
        return torch.ops.gdpa.attention(query, key, value, aux, scalars, self.program, "")


CASES = {
    "plain": Case("silu(mul(s,0.5))"),
    "GQA": Case("silu(s)", ((2, 4, 5, 6), (2, 2, 7, 6), (2, 1, 7, 3))),
    "MQA": Case("sigmoid(s)", ((2, 4, 5, 6), (2, 1, 7, 6), (2, 1, 7, 6))),
    "shared query": Case("silu(s)", ((1, 4, 5, 6), (3, 4, 7, 6), (3, 4, 7, 3))),
    "shared key": Case("silu(s)", ((3, 4, 5, 6), (1, 2, 7, 6), (3, 4, 7, 3))),
    "shared value": Case("silu(s)", ((3, 4, 5, 6), (3, 4, 7, 6), (1, 2, 7, 3))),
    "no rows": Case("silu(s)", ((2, 4, 0, 6), (2, 4, 7, 6), (2, 4, 7, 3))),
    "no keys": Case("add(silu(s),1.0)", ((2, 4, 5, 6), (2, 4, 0, 6), (2, 4, 0, 3))),
    "full bias": Case("a0:f[b,h,q_idx,kv_idx]; silu(add(s,a0))", aux=(("f", (2, 4, 5, 7)),)),
    "head bias": Case("a0:f[h,q_idx,kv_idx]; silu(add(s,a0))", aux=(("f", (4, 5, 7)),)),
    "shared bias": Case("a0:f[q_idx,kv_idx]; silu(add(s,a0))", aux=(("f", (5, 7)),)),
    "transposed bias": Case("a0:f[kv_idx,q_idx,-,h]; silu(add(s,a0))", aux=(("f", (7, 5, 1, 4)),)),
    "row scale": Case("a0:f[b,-,q_idx,-]; mul(silu(s),a0)", aux=(("f", (2, 1, 5, 1)),)),
    "key mask": Case("a0:b[b,-,-,kv_idx]; where(a0,silu(s),0.0)", aux=(("b", (2, 1, 1, 7)),)),
    "float mask": Case("a0:f[b,kv_idx]; mul(gelu(s),a0)", aux=(("f", (2, 7)),)),
    "0-dim scale": Case("a0:f[]; mul(silu(s),a0)", aux=(("f", ()),)),
    "one-element scale": Case("a0:f[-]; silu(mul(s,a0))", aux=(("f", (1,)),)),
    "lengths": Case("a0:i[b]; where(lt(kv_idx,a0),silu(s),0.0)", aux=(("i", (2,)),)),
    "divisor": Case("a0:i[b,-,-,-]; div(silu(s),float(a0))", aux=(("i", (2, 1, 1, 1)),)),
    "scalars": Case("div(silu(s),float(mul(i0,i1)))", scalars=(5, 2)),
    "indices": Case("where(ge(q_idx,kv_idx),mul(silu(s),float(add(h,b))),0.0)"),
    "several": Case(
        "a0:f[h]; a1:b[q_idx,kv_idx]; a2:f[b,-,q_idx,kv_idx]; t0=mul(s,a0); "
        "where(a1,add(mul(t0,sigmoid(t0)),a2),0.5)",
        aux=(("f", (4,)), ("b", (5, 7)), ("f", (2, 1, 5, 7))),
    ),
    "unused operand": Case("a0:f[q_idx]; silu(s)", aux=(("f", (5,)),)),
    "no score": Case("a0:f[q_idx,kv_idx]; relu(a0)", aux=(("f", (5, 7)),)),
    "constant": Case("2.0"),
    "steps": Case("add(round(s),detach(silu(s)))"),
}
EACH = pytest.mark.parametrize("case", [pytest.param(c, id=n) for n, c in CASES.items()])


@pytest.mark.parametrize("case", [pytest.param(c, id=n) for n, c in CASES.items() if n != "steps"])
def test_gradients_of_the_reference(case: Case) -> None:
    query, key, value, aux = case.operands()
    function = lambda q, k, v, *aux: case.call((q, k, v, list(aux)))
    assert torch.autograd.gradcheck(function, [query, key, value, *aux], atol=1e-6)


def written_out(case: Case, operands: Sequence[Tensor]) -> Tensor:
    """The formula by hand, for the programs whose name says what they are."""
    q, k, v, aux = operands
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    s = q @ k.mT
    return BY_HAND[case](s, *aux) @ v


BY_HAND: dict[Case, Callable[..., Tensor]] = {
    CASES["plain"]: lambda s: F.silu(s * 0.5),
    CASES["GQA"]: lambda s: F.silu(s),
    CASES["shared query"]: lambda s: F.silu(s),
    CASES["shared key"]: lambda s: F.silu(s),
    CASES["shared value"]: lambda s: F.silu(s),
    CASES["MQA"]: torch.sigmoid,
    CASES["no keys"]: lambda s: F.silu(s) + 1,
    CASES["full bias"]: lambda s, a: F.silu(s + a),
    CASES["head bias"]: lambda s, a: F.silu(s + a),
    CASES["shared bias"]: lambda s, a: F.silu(s + a),
    CASES["transposed bias"]: lambda s, a: F.silu(s + a.permute(2, 3, 1, 0)),
    CASES["row scale"]: lambda s, a: F.silu(s) * a,
    CASES["key mask"]: lambda s, a: F.silu(s).masked_fill(~a, 0),
    CASES["float mask"]: lambda s, a: F.gelu(s) * a[:, None, None, :],
    CASES["0-dim scale"]: lambda s, a: F.silu(s) * a,
    CASES["one-element scale"]: lambda s, a: F.silu(s * a),
    CASES["lengths"]: lambda s, a: F.silu(s) * (torch.arange(7) < a[:, None])[:, None, None],
    CASES["divisor"]: lambda s, a: F.silu(s) / a,
    CASES["scalars"]: lambda s: F.silu(s) / 10,
    CASES["indices"]: lambda s: (
        F.silu(s).tril() * (torch.arange(2).view(2, 1, 1, 1) + torch.arange(4).view(4, 1, 1))
    ),
    CASES["several"]: lambda s, a, c, d: torch.where(c, F.silu(s * a[:, None, None]) + d, 0.5),
    CASES["no score"]: lambda s, a: a.relu().expand_as(s),
    CASES["constant"]: lambda s: torch.full_like(s, 2.0),
    CASES["steps"]: lambda s: s.round() + F.silu(s).detach(),
}


@pytest.mark.parametrize("case", BY_HAND, ids=lambda c: c.program[:40])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_values_and_gradients_are_those_of_the_formula(case: Case, dtype: torch.dtype) -> None:
    operands = case.operands(dtype)
    leaves = [t for t in (*operands[:3], *operands[3]) if t.requires_grad]
    # In bf16 the op computes the scores in fp32: so does the formula here.
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    widened = [t.to(wide) if t.is_floating_point() else t for t in operands[3]]
    expected = written_out(case, ([*(t.to(wide) for t in operands[:3]), widened])).to(dtype)
    actual = case.call(operands)
    assert actual.dtype == dtype and actual.is_contiguous()
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.04}[dtype]
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(actual, expected, **close)
    cotangent = torch.randn_like(actual)
    ours = torch.autograd.grad(actual, leaves, cotangent, allow_unused=True)
    theirs = torch.autograd.grad(expected, leaves, cotangent, allow_unused=True)
    for mine, other, leaf in zip(ours, theirs, leaves):
        other = torch.zeros_like(leaf) if other is None else other
        assert mine.dtype == leaf.dtype and mine.shape == leaf.shape
        torch.testing.assert_close(mine, other, **close)


@EACH
def test_opcheck_of_the_forward(case: Case) -> None:
    query, key, value, aux = case.operands(torch.float32)
    arguments = (query, key, value, aux, list(case.scalars), case.program, "")
    torch.library.opcheck(torch.ops.gdpa.attention.default, arguments, test_utils=OPCHECKS)


@pytest.mark.parametrize(
    "name",
    ["GQA", "shared query", "shared value", "no rows", "no keys", "lengths", "scalars", "several"],
)
def test_opcheck_of_the_backward(name: str) -> None:
    case = CASES[name]
    query, key, value, aux = case.operands(torch.float32)
    grad_out = torch.randn_like(case.call((query, key, value, aux))).detach()
    tensors = [t.detach() for t in (query, key, value, *aux)]
    needs = [t.is_floating_point() for t in tensors]
    operands = (*tensors[:3], tensors[3:], list(case.scalars), case.program)
    arguments = (grad_out, *operands, needs, "")
    torch.library.opcheck(torch.ops.gdpa.attention_backward.default, arguments, test_utils=OPCHECKS)


@pytest.mark.parametrize("needed", range(1, 16))
def test_only_the_asked_gradients_are_computed(
    needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["shared bias"]
    query, key, value, aux = case.operands()
    leaves = [query, key, value, *aux]
    for position, leaf in enumerate(leaves):
        leaf.requires_grad_(bool(needed >> position & 1))
    seen: list[tuple[bool, ...]] = []
    original = torch.ops.gdpa.attention_backward

    def spy(*args):
        seen.append(tuple(args[7]))
        return original(*args)

    monkeypatch.setattr(torch.ops.gdpa, "attention_backward", spy)
    case.call((query, key, value, aux)).sum().backward()
    assert seen == [tuple(leaf.requires_grad for leaf in leaves)]
    assert [leaf.grad is not None for leaf in leaves] == list(seen[0])


@pytest.mark.parametrize(
    "spec",
    [
        "f[b,h,q_idx,kv_idx]",
        "f[kv_idx,q_idx,h,b]",
        "f[-,kv_idx,-,h]",
        "f[q_idx]",
        "f[]",
        "f[-,-]",
        "f[h,-,b]",
    ],
)
def test_axes_there_and_back(spec: str) -> None:
    program = ScoreMod.parse(f"a0:{spec}; s")
    sizes = {"b": 2, "h": 3, "q_idx": 4, "kv_idx": 5, "-": 1}
    tensor = torch.randn([sizes[a] for a in program.aux[0].access])
    placed = aux_on_axes(tensor, program.aux[0])
    assert list(placed.shape) == [sizes[a] if a in program.aux[0].axes else 1 for a in AXES]
    assert torch.equal(aux_from_axes(placed, program.aux[0]), tensor)


def test_fake_output_is_what_the_reference_gives() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        query = mode.from_tensor(torch.randn(2, 5, 4, 6, dtype=torch.bfloat16).transpose(1, 2))
        value = mode.from_tensor(torch.randn(1, 2, 7, 3, dtype=torch.float16))
        key = mode.from_tensor(torch.randn(2, 1, 7, 6, dtype=torch.bfloat16))
        out = torch.ops.gdpa.attention(query, key, value, [], [], "s", "")
    assert out.shape == (2, 4, 5, 3) and out.dtype == torch.float16 and out.is_contiguous()


def test_double_backward_says_so() -> None:
    case = CASES["plain"]
    operands = case.operands()
    (grad,) = torch.autograd.grad(case.call(operands).sum(), operands[0], create_graph=True)
    with pytest.raises(GDPAError, match="no second derivative"):
        grad.sum().backward()


def test_inference_mode_and_no_grad() -> None:
    case = CASES["several"]
    operands = case.operands()
    expected = case.call(operands)
    with torch.no_grad():
        assert torch.equal(case.call(operands), expected) and not case.call(operands).requires_grad
    with torch.inference_mode():
        assert torch.equal(case.call(operands), expected)


def test_autocast_does_not_reach_into_the_op() -> None:
    case = CASES["plain"]
    operands = case.operands(torch.float32)
    expected = case.call(operands)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(case.call(operands), expected)


def test_compute_dtype() -> None:
    assert compute_dtype(torch.float64) == torch.float64
    assert {compute_dtype(d) for d in (torch.float32, torch.bfloat16, torch.float16)} == {
        torch.float32
    }


Q, K, V = torch.randn(2, 4, 5, 6), torch.randn(2, 4, 7, 6), torch.randn(2, 4, 7, 3)
RIGHT = {
    "query": Q, "key": K, "value": V, "aux": [], "scalars": [], "score_mod": "s",
    "kernel_options": "",
}  # fmt: skip
BY_ROW = "a0:f[q_idx]; mul(s,a0)"
CHOSEN = "a0:b[q_idx]; where(a0,s,0.0)"
SCALED = {"score_mod": "mul(s,float(i0))"}
FAULTS = {
    "rank": ({"query": Q[0]}, "query must be .batch, heads, length, head dim."),
    "integers": ({"query": Q.long(), "key": K.long()}, "query must be floating point"),
    "complex": ({"value": V.cfloat()}, "value must be floating point"),
    "dtypes": ({"key": K.double()}, "query and key differ in dtype"),
    "head dim": ({"key": K[..., :4]}, "head dim of query and key: 6 and 4"),
    "length": ({"value": V[:, :, :3]}, "length of key and value: 7 and 3"),
    "heads": ({"key": K[:, :3]}, "4 query heads are no multiple of 3 key heads"),
    "batch": ({"key": torch.randn(3, 4, 7, 6)}, "batch of key: 3 and 2"),
    "missing operand": ({"score_mod": BY_ROW}, "declares 1 operands"),
    "missing scalar": (SCALED, "0 operands and 1 sizes, 0 and 0 are given"),
    "operand rank": ({"aux": [Q], "score_mod": BY_ROW}, "a0 has 4 dimensions"),
    "operand size": ({"aux": [torch.randn(4)], "score_mod": BY_ROW}, "q_idx of a0: 4 and 5"),
    "operand kind": ({"aux": [torch.randn(5)], "score_mod": CHOSEN}, "a0 is torch.float32"),
    "program": ({"score_mod": "softmax(s)"}, "unknown operation 'softmax'"),
    "device": ({"key": K.to("meta")}, "operands are on cpu and meta"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bad_operands_are_named(name: str) -> None:
    wrong, message = FAULTS[name]
    with pytest.raises((GDPAError, RuntimeError, ValueError), match=message):
        torch.ops.gdpa.attention(**{**RIGHT, **wrong})


def test_aux_prints_as_it_is_declared() -> None:
    assert str(Aux("b", ("b", "-", "q_idx", "kv_idx"))) == "b[b,-,q_idx,kv_idx]"


@pytest.mark.parametrize("rank", [3, 4])
def test_symbolic_strides_in_another_order_are_captured_anew(rank: int) -> None:
    """Gradients lie in the order of the strides at capture (`shapes.dense_strides`). We add no
    guard for it: torch has its own."""
    shape, captured = (3, 4, 40, 16)[4 - rank :], torch._dynamo.utils.counters["stats"]

    def sliced(*order: int) -> Tensor:
        room = torch.randn([shape[d] + 8 for d in order]).permute(
            [order.index(d) for d in range(rank)]
        )
        for d, size in enumerate(shape):
            room = room.narrow(d, 0, size)
        return room.detach().requires_grad_()

    options = {"gdpa.profit": False, "gdpa.expect": 1}
    run = torch.compile(
        lambda q, k, v: F.silu(q @ k.mT) @ v, backend="gdpa", dynamic=True, options=options
    )
    captured.clear()
    for number, order in enumerate([(0, 1), (1, 0)], 1):
        operands = [sliced(*order, *range(2, rank)) for _ in range(3)]
        torch.autograd.grad(run(*operands).sum(), operands)
        assert captured["unique_graphs"] == number


SLOPES = {"clamp_min": 1.0, "clamp_max": 1.0, "clamp_min_open": 0.0, "clamp_max_open": 0.0}


@pytest.mark.parametrize("name", SLOPES)
def test_a_program_has_the_same_slopes_on_every_torch(name):
    """Also where torch's own clamp has another one: an export keeps what it was exported with."""
    query, key, value = (torch.ones(1, 1, 1, 1, dtype=torch.float64) for _ in range(3))
    query.requires_grad_()
    out = torch.ops.gdpa.attention(query, key, value, [], [], f"{name}(s,1.0)", "")
    (grad,) = torch.autograd.grad(out, query)
    assert out.item() == 1.0 and grad.item() == SLOPES[name]
