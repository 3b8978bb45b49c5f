"""Row sums of Hopper's kernels: of the forward, their gradient in the backward, machine code."""

import dataclasses

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute import launch
from gdpa_inductor.kernels.cute.backward.launch import backward
from gdpa_inductor.kernels.cute.backward.roots import row_gradient
from gdpa_inductor.kernels.cute.plan import plan_of
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.kernels.cute.sm100.config import Sm100Config
from gdpa_inductor.operands import Operands
from gdpa_inductor.program.score_mod import ScoreMod, formula
from gdpa_inductor.reference import reference
from gdpa_inductor.rejection import GDPAError
from tests.tolerances import error_of

from . import cute_backward_cases as gradients
from . import test_cute_forward
from .cute_account import Binary, binary
from .cute_cases import F16, SELF, Case, check_gaps, check_output, with_gaps
from .cute_memory import gradients as gradients_of
from .marks import slow_but
from .test_cute_hopper_backward import emulated, fresh  # noqa: F401
from .test_cute_stored_biases import HEADS, check, of

SIGMOID = "t0=sigmoid(mul(s,0.125)); r=t0; t0"
RELU = "t0=div(relu(s),64.0); r=t0; t0"
CAUSAL = "t0=where(ge(q_idx,kv_idx),{},0.0); r=t0; t0"
ABSOLUTE = "t0=where(ge(q_idx,kv_idx),tanh(mul(s,0.125)),0.0); r=abs(t0); t0"
GELU = "t0=gelu_tanh(mul(s,0.125)); r=t0; t0"
SQUARES = "t0=silu(mul(s,0.125)); r=mul(t0,t0); t0"
BIASED = "a0:f[h,q_idx,kv_idx]; t0=sigmoid(add(mul(s,0.1),a0)); r=t0; t0"
OTHER_MASK = (
    "a0:b[b,-,q_idx,kv_idx]; t0=relu(s); r=where(a0,t0,0.0); where(ge(q_idx,kv_idx),t0,0.0)"
)
OF_AN_OPERAND = "a0:f[h,kv_idx]; r=exp(mul(a0,0.25)); mul(silu(s),a0)"
NO_KEYS = {"q_lengths": (100, 300, 140, 130, 1, 2), "k_lengths": (0, 200, 0, 100, 0, 0)}

CASES = (
    Case("sigmoid", SIGMOID, d=64, m=400, n=270, h=2),
    Case("relu, D 128", RELU, m=200, n=300, h=2, hk=1),
    Case("causal sigmoid", CAUSAL.format("sigmoid(s)"), d=64, m=260, n=260),
    Case("absolute, D 128", ABSOLUTE, m=300, n=300),
    Case("silu, fp16", CAUSAL.format("silu(mul(s,0.125))"), d=64, m=300, n=300, dtype=F16),
    Case("gelu, in pieces", GELU, d=64, m=400, n=140, h=3, ctas=4),
    Case("squares, queries scaled", SQUARES, d=64, m=200, n=300, ctas=2),
    Case("bias", BIASED, d=64, m=200, n=264, h=2),
    Case("another mask", OTHER_MASK, d=96, m=130, n=200, b=2),
    Case("of an operand", OF_AN_OPERAND, d=64, m=70, n=140, h=2),
    Case("D 256", SIGMOID, d=256, m=200, n=330, h=2),
    Case("in slices", SIGMOID, d=64, dv=320, m=140, n=200, h=2),
    Case("jagged", SIGMOID, d=64, h=2, q_lengths=SELF, k_lengths=SELF, ctas=2),
    Case("jagged, causal, D 128", ABSOLUTE, h=2, q_lengths=SELF, k_lengths=SELF, most=140),
    Case("jagged queries", SIGMOID, d=64, b=4, n=192, q_lengths=SELF, offsets=torch.int64),
    Case("jagged keys", RELU, d=64, b=4, m=72, shared="q", k_lengths=SELF),
    Case("no keys", SIGMOID, d=64, **NO_KEYS),
)  # fmt: skip
OFTEN = ("sigmoid", "absolute, D 128", "in slices", "jagged", "no keys", "of an operand")


def forward(case: Case, o: Operands, monkeypatch, **options) -> tuple[torch.Tensor, ...]:
    """O and the row sums; NaN where nothing was stored."""
    sums = torch.full(reference(o)[1].shape, torch.nan)
    monkeypatch.setattr(launch, "empty", lambda *_: sums)
    out = test_cute_forward.forward(case, o, kind=Sm90Config, more=[sums], **options)
    return out, sums


def exact(o: Operands) -> torch.Tensor:
    tensors = o.differentiable
    query, key, value, *aux = (x.double() if x.is_floating_point() else x for x in tensors)
    return reference(dataclasses.replace(o, query=query, key=key, value=value, aux=aux))[1]


def check_sums(sums: torch.Tensor, o: Operands) -> None:
    """They are no further away than exact ones that were rounded to bf16."""
    rounded = exact(o).bfloat16().float()
    assert not (fault := error_of(sums, rounded, exact(o), direction="forward")), fault


@pytest.mark.parametrize("case", slow_but(OFTEN, CASES))
def test_forward(case: Case, monkeypatch):
    o = case.operands()
    out, sums = forward(case, o, monkeypatch)
    check_output(out, o)
    check_sums(sums, o)


def test_the_schedule_does_not_matter(monkeypatch):
    case = Case("schedules", SIGMOID, d=64, m=400, n=270)
    forward(case, case.operands(), monkeypatch, schedules=("lazy", "random", "eager"))


def test_integers_are_summed_exactly(monkeypatch):
    """Every key of every row is counted once, and none past the end."""
    case = Case("integers", "t0=add(relu(s),1.0); r=t0; t0", d=64, m=200, n=300, h=2, dtype=F16)
    o = case.operands()
    for matrix in (o.query, o.key, o.value):
        matrix.copy_(torch.randint(0, 8, matrix.shape) // 7)
    assert torch.equal(forward(case, o, monkeypatch)[1].double(), exact(o))


def test_rows_of_no_sequence_are_zero(monkeypatch):
    case = Case("gaps", SIGMOID, d=64, h=3, q_lengths=SELF, k_lengths=SELF)
    o, owned = with_gaps(case)
    _, sums = forward(case, o, monkeypatch)
    check_gaps(sums, owned)
    assert sums[owned].all()


def test_later_slices_have_a_kernel_without_sums(monkeypatch):
    case = CASES[-6]
    assert case.name == "in slices"
    launched = []
    monkeypatch.setattr(launch, "launcher", launched.append)
    plan = plan_of(case.operands(), True, True, Sm90Config)
    for first in (True, False):
        launch.launcher_in(plan, first)
    assert [x.sums for x in launched] == [True, False]
    assert [len(x.matrices) for x in launched] == [2, 1]
    plain = dataclasses.replace(plan.config, program="sigmoid(s)")
    assert plain.without_sums is plain


def test_blackwell_has_no_row_sums():
    with pytest.raises(GDPAError, match="for Blackwell does not sum rows"):
        plan_of(CASES[0].operands(), True, True, Sm100Config)


GRADIENT = "a0:f[b,h,q_idx]; "
OF_SIGMOID = GRADIENT + "t0=sigmoid(mul(s,0.125)); r=mul(a0,t0); t0"
OF_ABSOLUTE = GRADIENT + "t0=where(ge(q_idx,kv_idx),tanh(s),0.0); r=mul(a0,abs(t0)); t0"
OF_SQUARES = GRADIENT + "t0=relu(mul(s,0.25)); r=mul(a0,mul(t0,t0)); mul(t0,0.5)"
OF_ROOTS = GRADIENT + "t0=sigmoid(mul(s,0.125)); r=mul(a0,sqrt(t0)); t0"  # ∞ at 0
OF_ROWS = "a0:f[q,h]; t0=relu(mul(s,0.125)); r=mul(a0,t0); t0"
OF_BIASED = (
    "a0:f[h,q_idx,kv_idx]; a1:f[b,h,q_idx]; t0=sigmoid(add(mul(s,0.125),a0)); r=mul(a1,t0); t0"
)
SEQUENCES = {"rows": (200, 0, 130, 1), "keys": (200, 0, 130, 1)}
WIDE = {"dims": (128, 128), "heads": 1, "key_heads": 1}
GRADIENTS = {
    "sigmoid, tails": gradients.Case(OF_SIGMOID, batch=2, key_heads=1, rows=200, keys=150),
    "absolute, D 128": gradients.Case(OF_ABSOLUTE, rows=300, keys=300, **WIDE),
    "squares, fp16": gradients.Case(
        OF_SQUARES, rows=100, keys=260, dims=(96, 40), dtype=torch.float16
    ),
    "roots, tails": gradients.Case(OF_ROOTS, heads=1, key_heads=1, rows=100, keys=150),
    "jagged": gradients.Case(OF_ROWS, **SEQUENCES),
    "jagged, D 128": gradients.Case(
        OF_ROWS.replace("relu", "sigmoid"), **SEQUENCES, **WIDE, dtype=torch.float16
    ),
    "jagged queries": gradients.Case(OF_ROWS, rows=(150, 40, 0), keys=64),
    "jagged keys": gradients.Case(OF_SIGMOID, rows=70, keys=(150, 40, 0, 200)),
    "beside a bias": gradients.Case(OF_BIASED, rows=136, keys=200, bias=torch.bfloat16),
}


OFTEN_BACK = ("absolute, D 128", "roots, tails", "jagged", "jagged keys")


@pytest.mark.parametrize("name", slow_but(OFTEN_BACK, GRADIENTS))
def test_backward(name: str):
    case = GRADIENTS[name]
    call = gradients.make_call(case)
    gradients.check_errors(emulated(case, call), case, call)


@pytest.mark.parametrize(
    ("rows", "room"),
    [
        pytest.param(140, 256 << 20, id="dense, at once", marks=pytest.mark.slow),
        pytest.param(140, 1, id="dense, in parts"),
        pytest.param((140, 37), 256 << 20, id="jagged, at once"),
        pytest.param((140, 37), 1, id="jagged, in parts", marks=pytest.mark.slow),
    ],
)
def test_beside_the_gradient_of_a_bias(rows, room: int):
    """On integers: a wrong index is a wrong bit."""
    body, sums = "t0=relu(add(mul(s,0.5),a0)); r=mul(a1,t0); t0", "b,h,q_idx"
    sums = "q,h" if isinstance(rows, tuple) else sums
    case = of(body, HEADS, sums, rows=rows, keys=rows, room=room)
    grad, o = case.call()

    def emulate(case, grad, o, needs) -> list[torch.Tensor]:
        order = torch.arange(case.sizes[0]).flip(0) if o.jagged else None
        return gradients_of(grad, o, needs, order, ctas=1, room=case.room)

    check(case, grad, o, (True,) * 4 + (False,), emulate)


def test_a_gradient_is_not_read_past_the_end_of_a_sequence():
    """That of a neighbour is NaN. So is all that its sequence has."""
    case = gradients.Case(OF_ROWS, heads=1, key_heads=1, rows=(70, 30), keys=(60, 50))
    call = gradients.make_call(case)
    call.operands.aux[0][70:100] = torch.nan
    cut = [(x[:first].isfinite().all(), x[first:end].isnan().all())
           for x, first, end in zip(emulated(case, call)[:2], (70, 60), (100, 110))]  # fmt: skip
    assert all(map(all, cut))


@pytest.mark.parametrize(
    ("program", "ratio"),
    [
        (OF_SIGMOID, "1.0"),
        (OF_ABSOLUTE, "sign(g)"),
        (OF_ROWS, "1.0"),
        (GRADIENT + "t0=relu(s); r=mul(a0,mul(t0,3.0)); mul(t0,2.0)", "1.5"),
        (GRADIENT + "t0=tanh(s); r=mul(a0,mul(t0,t0)); t0", "g + g"),
        (GRADIENT + "t0=tanh(s); r=mul(a0,detach(t0)); t0", None),
        ("relu(s)", None),
    ],
)
def test_the_ratio_of_slopes(program: str, ratio: str | None):
    gradient = row_gradient(str(ScoreMod.parse(program)))
    assert ratio == (gradient and formula(gradient.ratio))


@pytest.mark.parametrize(
    "program",
    [
        GRADIENT + "t0=relu(s); r=mul(a0,t0); where(ge(q_idx,kv_idx),t0,0.0)",
        GRADIENT + "r=mul(a0,relu(s)); 0.0",
        GRADIENT + "t0=tanh(s); r=mul(a0,mul(abs(t0),float(kv_idx))); t0",
        "t0=relu(s); r=t0; t0",
    ],
)
def test_other_sums_have_no_gradient_here(program: str):
    case = gradients.Case(program, rows=64, keys=64)
    call = gradients.make_call(case)
    needs = (True,) * 3 + (False,) * len(call.operands.aux)
    with pytest.raises(GDPAError, match="row sums of functions of the weights"):
        backward(call.grad_out, call.operands, needs, ctas=1, stream=0, kind=Sm90Config)


def products(config: Sm90Config) -> Binary:
    """The code of the warps that multiply, where products are in flight as without row sums."""
    kernel = binary(config)
    plain = ScoreMod.parse(config.program)
    plain = binary(
        dataclasses.replace(config, program=str(dataclasses.replace(plain, summed=None)))
    )
    for opcode in ("WARPGROUP.DEPBAR", "HGMMA"):
        assert kernel.count(opcode) == plain.count(opcode), "the products are serialized"
    assert kernel.before("USETMAXREG.DEALLOC").spills <= plain.spills + 16
    return kernel.before("USETMAXREG.DEALLOC")


FORWARDS = {f"{name}, D {dim}": (dim, program) for dim in (64, 128)
            for name, program in (("sigmoid", SIGMOID), ("absolute", ABSOLUTE))}  # fmt: skip
BACKWARDS = {f"{name}, D {dim}": (dim, program) for dim in (64, 128)
             for name, program in (("sigmoid", OF_SIGMOID), ("absolute", OF_ABSOLUTE))}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(["sigmoid, D 64", "absolute, D 128"], FORWARDS))
def test_machine_code_of_the_forward(name: str):
    """An addition for each score, and at the end of a tile two shuffles for each of two rows."""
    dim, program = FORWARDS[name]
    kernel = products(Sm90Config("bfloat16", dim, dim, program))
    # A tile's first block and the block of a step, each with and without a mask.
    assert kernel.count("FADD") >= 2 * 2 * 128 // 2
    assert kernel.count("SHFL") == 2 * 2
    assert kernel.count("LDG") == 0


@pytest.mark.parametrize("name", slow_but(["absolute, D 64", "sigmoid, D 128"], BACKWARDS))
def test_machine_code_of_the_backward(name: str):
    """A warp loads the gradients of a query tile once, in a step and in the last one."""
    dim, program = BACKWARDS[name]
    config = Sm90Config("bfloat16", dim, dim, program, ("float32",), kernel="backward")
    kernel = products(config)
    assert kernel.count("LDG") == 2 * config.query_rows // 32
    assert kernel.count("SHFL") == 2 * config.query_rows // 4
