"""What the kernels compute between the products: every operation, in full accuracy and fast.

On a CPU Inductor's ops are played by torch and the approximate instructions by exact functions, so
that the algebra of every form is checked; the instructions themselves are measured on a GPU.
"""

import math

import pytest
import torch

from gdpa_inductor import lowerings
from gdpa_inductor._compat import lowering
from gdpa_inductor.lowerings.triton import emit
from gdpa_inductor.program.emission import emitted
from gdpa_inductor.program.expr import (
    INDEX,
    OPS,
    SCORE,
    aux,
    call,
    fold,
    torch_apply,
)
from gdpa_inductor.program.expr import (
    INSTRUCTIONS as ROWS_OF_KERNELS,
)
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.reference import program_leaves
from tests.literals import LITERALS

INSTRUCTIONS = {
    "tanh.approx.f32": torch.tanh,
    "ex2.approx.f32": torch.exp2,
    "lg2.approx.f32": torch.log2,
    "rcp.approx.f32": torch.reciprocal,
    "max.NaN.f32": torch.maximum,
    "min.NaN.f32": torch.minimum,
    "cvt.rn.bf16x2.f32": lambda x: x.bfloat16().float(),
}
BY_TORCH = {
    "constant": lambda value, dtype: torch.tensor(value, dtype=dtype),
    "to_dtype": lambda x, dtype, use_compute_types=True: x.to(dtype),
    "inline_asm_elementwise": lambda *x, asm, **_: INSTRUCTIONS[asm.split()[0]](*x),
    "mod": torch.fmod,
    "floordiv": lambda x, y: torch.div(x, y, rounding_mode="floor"),
}


def play(name: str, *args, **kwargs):
    """One of Inductor's ops."""
    return BY_TORCH.get(name, getattr(torch, name, None))(*args, **kwargs)


@pytest.fixture(autouse=True)
def ops_by_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lowering, "inductor_op", play)


def operands(kinds: str) -> list[torch.Tensor]:
    grid = torch.cat([torch.linspace(-30, 30, 2001), torch.tensor([0.0, 3.0, -3.0, 1e-3, -1e-3])])
    entries = {
        "f": [grid, grid.flip(0) + 0.25],
        "i": [torch.arange(-20, 21), torch.arange(41) % 7 - 3],
        "b": [grid > 0, grid.flip(0) > -5],
    }
    result = [entries[kind][i % 2] for i, kind in enumerate(kinds)]
    if kinds == "ii":
        result[1] = torch.where(result[1] == 0, 5, result[1])
    if kinds == "bii":
        result[1:] = [grid.long(), grid.long() + 1]
    if "b" in kinds and "f" not in kinds and kinds != "bii":
        result = [grid > 0, grid.flip(0) > -5][: len(kinds)]
    return result


def value(name: str, inputs: list[torch.Tensor], literals: tuple, kinds: str, fast: bool):
    """One operation on tensors, as a kernel's modification would compute it."""
    variables = [aux(i, kind) for i, kind in enumerate(kinds[: len(inputs)])]
    terms = emitted([call(name, *variables, *literals)], emit.PLAIN, fast)

    def leaf(node):
        if not node.is_const:
            return inputs[node.value]
        return torch.tensor(node.value, dtype=torch.float32 if node.kind == "f" else None)

    return fold(terms, leaf, emit.emitter(fast))[0]


CASES = [
    (form, name, signature.split(">")[0], literals)
    for form in ("plain", "fast")
    for name, op in OPS.items()
    for signature in op.kinds
    for literals in LITERALS.get(name, [()])
    if form == "plain" or set(signature.split(">")[0]) == {"f"}
    if name not in ("lookup", "random16")  # templates load or draw it
]
OF_REALS = [case for case in CASES if set(case[2]) == {"f"}]


def label(inputs: str | tuple) -> str:
    return inputs if isinstance(inputs, str) else ",".join(map(str, inputs))


@pytest.mark.parametrize("form, name, kinds, literals", CASES, ids=label)
def test_every_operation(form: str, name: str, kinds: str, literals: tuple):
    fast = form == "fast"
    inputs = operands(kinds[: len(kinds) - len(literals)])
    if name == "float":
        want = inputs[0].float()
    else:
        want = OPS[name].torch(*inputs, *literals)
    got = value(name, inputs, literals, kinds, fast)
    if not want.is_floating_point():
        assert torch.equal(got.to(want.dtype), want)
        return
    allowed = 1e-5 * want.abs().clamp(min=1.0)
    if fast:  # exp grows beyond the rule, and is held to fp32's own precision of x·log2(e)
        allowed = 2.0**-10 * inputs[0].abs().clamp(min=1.0) + 2.0**-18 * want.abs()
    same = (got == want) | (got.isnan() & want.isnan()) | ((got - want).abs() <= allowed)
    assert same.all(), f"at {inputs[0][~same][:5]}: {got[~same][:5]}, not {want[~same][:5]}"


def test_what_is_emitted_are_operations():
    assert set(emit.PLAIN) < {*OPS, *ROWS_OF_KERNELS}
    assert set(emit.FAST) < set(emit.PLAIN)


def test_what_has_no_form_is_named():
    with pytest.raises(ValueError, match="erf has no form"):
        emitted([call("gelu", SCORE)], {"mul", "add"}, fast=False)


def test_integers_have_no_fast_form(monkeypatch: pytest.MonkeyPatch):
    """The fast maximum is an instruction on fp32 registers: -1 would be NaN to it."""
    monkeypatch.setattr(emit, "FAST", dict.fromkeys(emit.FAST))
    index = call("minimum", call("maximum", call("sub", INDEX["q_idx"], 5), 0), INDEX["kv_idx"])
    leaves = {INDEX["q_idx"]: torch.arange(9)[:, None], INDEX["kv_idx"]: torch.arange(4)}
    leaf = lambda node: torch.tensor(node.value) if node.is_const else leaves[node]
    (result,) = fold(emitted([index], emit.PLAIN, True), leaf, emit.emitter(fast=True))
    want = (leaves[INDEX["q_idx"]] - 5).clamp(min=0).minimum(leaves[INDEX["kv_idx"]])
    assert torch.equal(result, want)


SPECIALS = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40]


@pytest.mark.parametrize("form, name, kinds, literals", OF_REALS, ids=label)
def test_special_values(form: str, name: str, kinds: str, literals: tuple):
    """NaN and infinities are where torch has them: a relu of NaN is NaN, the sign of NaN is 0."""
    points = torch.tensor([*SPECIALS, 2.5, -2.5])
    if name == "gelu":  # torch's own is NaN at infinity on a CPU, and right on a GPU
        points = points[~points.isinf()]
    count = len(kinds) - len(literals)
    arguments = list(torch.cartesian_prod(*[points] * count).T) if count > 1 else [points]
    want = OPS[name].torch(*arguments, *literals)
    got = value(name, arguments, literals, kinds, form == "fast")
    assert torch.equal(got.isnan(), want.isnan()), arguments[0][got.isnan() != want.isnan()]
    infinite = want.isinf()
    assert torch.equal(got[infinite], want[infinite]), arguments[0][infinite]
    assert torch.equal(got.isinf(), infinite), arguments[0][got.isinf() != infinite]


# Of every operation that has a fast form.
FAST_PROGRAMS = {name: f"{name}(s)" for name, op in OPS.items() if op.fast} | {
    "softplus": "softplus(s,1.0,20.0)",
    "exp": "exp(mul(s,0.3))",
    "exp2": "exp2(mul(s,0.3))",
    "div": "div(s,3.0)",
}


@pytest.mark.cuda
@pytest.mark.parametrize("name", sorted(FAST_PROGRAMS))
def test_the_numerics_rule_holds_on_the_device(name: str, monkeypatch: pytest.MonkeyPatch):
    """|fast - exact| <= 2^-10 max(1, |x|) for x in [-30, 30], seen through one key in fp16."""
    monkeypatch.undo()
    lowerings.register()
    program = FAST_PROGRAMS[name]
    x = torch.linspace(-30, 30, 60001).half().unique()
    query, key = torch.zeros(1, 1, len(x), 16).half(), torch.zeros(1, 1, 1, 16).half()
    query[0, 0, :, 0], key[..., 0] = x, 1.0
    run = torch.compile(
        lambda q, k, v: torch.ops.gdpa.attention(q, k, v, [], [], program, "strict=True")
    )
    got = run(query.cuda(), key.cuda(), key.cuda())[0, 0, :, 0].double().cpu()
    leaf = program_leaves(x.double(), [], [], ScoreMod.parse(program))
    (want,) = fold([ScoreMod.parse(program).weight], leaf, torch_apply(torch.float64))
    representable = want.abs() < 6e4
    bound = 2.0**-10 * x.double().abs().clamp(min=1.0) + want.abs() * 2.0**-11 + 2.0**-24
    assert ((got - want).abs() <= bound)[representable].all()
