"""When the generated code of a Hopper or Blackwell device calls the CuTe kernels, and what it says
when not."""

import logging
from dataclasses import replace

import pytest
import torch

from gdpa_inductor import lowerings
from gdpa_inductor.lowerings.cute import calls, rules
from gdpa_inductor.options import Options
from gdpa_inductor.problem import Problem
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.rejection import Code
from tests.kernels import render

BF16 = torch.bfloat16


def problem(**changes) -> Problem:
    given = {
        "program": ScoreMod.parse("silu(s)"), "device": torch.device("cuda"), "dtype": BF16,
        "value_dtype": BF16, "aux_dtypes": (), "batch": 8, "heads": 4, "key_heads": 4,
        "value_heads": 4, "rows": 1024, "cols": 1024, "head_dim": 128, "value_dim": 64,
        "training": True,
    }  # fmt: skip
    return Problem(**{**given, **changes})


@pytest.fixture
def blackwell(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (10, 0))
    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")


@pytest.mark.usefixtures("blackwell")
@pytest.mark.parametrize("kernel", ["auto", "cute"])
def test_it_is_the_choice_of_blackwell(kernel: str):
    assert lowerings.choose(problem(), Options(kernel=kernel)).kernel == "cute"


@pytest.mark.usefixtures("blackwell")
def test_triton_can_be_asked_for():
    assert lowerings.choose(problem(), Options(kernel="triton")).kernel == "triton"


@pytest.mark.usefixtures("blackwell")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 136}, "a head dim of 136"),
        ({"value_dim": 20}, "a head dim of 20"),
        ({"dtype": torch.float32, "value_dtype": torch.float32}, "takes fp16 and bf16"),
    ],
)
def test_what_it_does_not_take_goes_to_triton(changes: dict, reason: str):
    choice = lowerings.choose(problem(**changes), Options(profit=False))
    assert choice.kernel == "triton"
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "nvidia-cutlass-dsl is not installed"),
        ("4.7.0", "4.7.0 is not one of the tested versions"),
        ("5.0.0.dev1", "5.0.0.dev1 is not one of the tested versions"),
    ],
)
def test_without_a_tested_cutlass_it_is_triton(blackwell, monkeypatch, version, reason):
    monkeypatch.setattr(rules, "installed", lambda: version)
    choice = lowerings.choose(problem(), Options())
    assert choice.kernel == "triton"
    assert reason in choice.reason


@pytest.mark.usefixtures("blackwell")
def test_mostly_padded_scores_go_to_triton():
    """Their gradients would take that much memory."""
    few = {"jagged_query": True, "jagged_key": True, "total_rows": 2048, "total_cols": 2048}
    given = problem(**{**BIAS, **few, "batch": 8})
    choice = lowerings.choose(given, Options())
    assert choice.kernel == "triton" and "padded scores" in choice.reason
    for other in (replace(given, needs=(True,) * 3 + (False,)), replace(given, batch=2)):
        assert lowerings.choose(other, Options()).kernel == "cute"


@pytest.mark.usefixtures("blackwell")
@pytest.mark.parametrize("capability", [(9, 0), (10, 0)])
@pytest.mark.parametrize("jagged", [{}, {"jagged_key": True, "total_cols": 1 << 20}])
def test_few_queries_go_to_triton(monkeypatch, capability: tuple[int, int], jagged: dict):
    """Tiles of at least 128 rows would be mostly empty."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    sizes = {"batch": 256, "cols": 4096, "value_dim": 128, "training": False, **jagged}
    choice = lowerings.choose(problem(rows=16, **sizes), Options())
    assert choice.kernel == "triton"
    assert "for up to 64 queries" in choice.reason
    if not jagged:
        assert lowerings.choose(problem(rows=128, **sizes), Options()).kernel == "cute"


@pytest.fixture
def hopper(blackwell, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))


def named(changes: dict) -> str:
    """The same in every process, as a program's own text is and its repr is not."""
    return ", ".join(f"{name}={value}" for name, value in changes.items())


LARGE = {"batch": 16, "heads": 4, "rows": 2048, "cols": 2048, "head_dim": 128, "value_dim": 128}
TOTAL = 16 * 2048
JAGGED = {"jagged_query": True, "jagged_key": True, "total_rows": TOTAL, "total_cols": TOTAL}
BACKWARD = {"needs": (True, True, True)}
NARROW = {"head_dim": 64, "value_dim": 64}
WIDE = {"head_dim": 256, "value_dim": 256, "training": False}
MASK = {
    "program": ScoreMod.parse("a0:b[q_idx,kv_idx]; where(a0,silu(s),0.0)"),
    "aux_dtypes": (torch.bool,),
}  # fmt: skip
MASKED_BIAS = {
    "program": ScoreMod.parse(
        "a0:b[q_idx,kv_idx]; a1:f[h,q_idx,kv_idx]; where(a0,silu(add(s,a1)),0.0)"
    ),
    "aux_dtypes": (torch.bool, BF16), "needs": (True, True, True, False, True),
}  # fmt: skip
BIAS = {
    "program": ScoreMod.parse("a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.1),a0))"),
    "aux_dtypes": (BF16,), "needs": (True,) * 4,
}  # fmt: skip


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        NARROW,
        BACKWARD,
        {**BACKWARD, **NARROW},
        {**JAGGED, **NARROW},
        {**JAGGED, "rows": 512},
        BIAS,
        {**BIAS, "rows": 1024},
        {**BIAS, "needs": ()},
        MASK,
        {**MASK, **BACKWARD},
        {**MASK, **JAGGED},
        {**MASK, "program": ScoreMod.parse("a0:b[b,-,-,kv_idx]; where(a0,silu(s),0.0)")},
        {**MASK, "program": ScoreMod.parse("a0:b[q_idx,kv_idx]; where(a0,sigmoid(s),1.0)")},
        MASKED_BIAS,
        {**BIAS, "aux_dtypes": (torch.float32,)},
        {**BIAS, "aux_dtypes": (torch.float32,), **JAGGED, "needs": ()},
        {**BIAS, **JAGGED},
        {**BIAS, **JAGGED, "batch": 32},
        WIDE,
        {**WIDE, "value_dim": 128},
        {**WIDE, **JAGGED},
    ],
    ids=named,
)
def test_it_is_the_choice_of_hopper_for_large_problems(changes: dict):
    assert lowerings.choose(problem(**{**LARGE, **changes}), Options()).kernel == "cute"


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    "changes",
    [
        {**NARROW, "rows": 1024},
        {"head_dim": 32, "value_dim": 32},
        {"value_dim": 64},
        {**BACKWARD, "head_dim": 32},
        {"rows": 256},
        {**WIDE, "rows": 256},
        {**WIDE, "value_dim": 64},
        {**BACKWARD, "rows": 256},
        {**BIAS, "rows": 512},
        {**BIAS, "aux_dtypes": (torch.float32,), "needs": ()},
        {**MASK, **NARROW, "batch": 64},
        {**MASK, **NARROW, **BACKWARD},
        {**MASK, **WIDE},
        {**JAGGED, "batch": 1024, "rows": 128},
        {**JAGGED, "batch": 1024, "rows": 512, "cols": 512, "total_rows": 1024 * 20},
        {**JAGGED, "rows": TOTAL, "cols": TOTAL},
        {**BIAS, **JAGGED, "batch": 64},
    ],
    ids=named,
)
def test_hopper_prefers_triton_where_it_is_faster(changes: dict):
    given = problem(**{**LARGE, **changes})
    choice = lowerings.choose(given, Options())
    assert choice.kernel == "triton"
    assert "cute: on Hopper" in choice.reason and "Triton" in choice.reason
    assert lowerings.choose(given, Options(kernel="cute")).kernel == "cute"


@pytest.mark.usefixtures("hopper")
def test_training_at_wide_heads_is_left_unfused():
    """Its backward would be Triton's, which is slower than the unfused form."""
    given = problem(**{**LARGE, **WIDE, "training": True})
    refusal = lowerings.choose(given, Options())
    assert not refusal and refusal.code is Code.SLOWER
    # What was rewritten all the same is lowered: the forward here, the backward by Triton.
    off = Options(profit=False)
    assert lowerings.choose(given, off).kernel == "cute"
    choice = lowerings.choose(problem(**{**LARGE, **WIDE, **BACKWARD}), off)
    assert choice.kernel == "triton"
    assert "a head dim of 256; the CuTe backward takes up to 128" in choice.reason


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    "changes, reason",
    [
        ({**JAGGED, "rows": TOTAL, "cols": TOTAL}, "no `max_seqlen` bounds"),
        ({"program": ScoreMod.parse("a0:f[h]; mul(a0,silu(s))")}, "not added to the score, as a0"),
    ],
    ids=["unbounded", "gate"],
)
def test_gradients_of_other_operands_go_to_triton(changes: dict, reason: str):
    choice = lowerings.choose(problem(**{**LARGE, **BIAS, **changes}), Options())
    assert choice.kernel == "triton"
    assert reason in choice.reason


@pytest.mark.usefixtures("blackwell")
@pytest.mark.parametrize("kernel", ["auto", "cute"])
def test_other_gpus_get_triton(monkeypatch, kernel: str):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    choice = lowerings.choose(problem(), Options(kernel=kernel))
    assert choice.kernel == "triton"
    assert ("capability 9.x or 10.x" in choice.reason) == (kernel == "cute")


def step(options: str, program: str = "silu(mul(s,0.125))", bias: bool = False):
    """The forward and the gradients of q, k, v (and of a bias)."""

    def run(query, key, value, *aux):
        out = torch.ops.gdpa.attention(query, key, value, aux, [], program, options)
        needs = [True, True, True, *(True for _ in aux)]
        return out, *torch.ops.gdpa.attention_backward(
            out, query, key, value, aux, [], program, needs, options
        )

    return run


def tensors(*more: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=BF16) for shape in ((2, 4, 512, 64),) * 3 + more]


def test_the_generated_code_calls_the_kernels(monkeypatch):
    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")
    code = render.wrapper(step(""), tensors(), capability=100)
    assert "gdpa_forward_site(True)" in code and "gdpa_backward_site(True)" in code
    assert not render.kernels(code)
    assert torch._dynamo.utils.counters["gdpa"]["lowered_cute"] == 2


def test_without_cutlass_the_generated_code_calls_triton(monkeypatch, caplog):
    monkeypatch.setattr(rules, "installed", lambda: None)
    with caplog.at_level(logging.WARNING, "gdpa_inductor"):
        code = render.wrapper(step("kernel=cute"), tensors(), capability=100)
    assert "_site" not in code
    assert len(render.kernels(code)) >= 3
    assert "nvidia-cutlass-dsl is not installed" in caplog.text
    assert torch._dynamo.utils.counters["gdpa"]["lowered_triton"] == 2


@pytest.mark.parametrize("capability", [90, 100])
def test_the_gradient_of_a_bias_stays_in_cute(monkeypatch, capability: int):
    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")
    run = step("kernel=cute", "a0:f[h,q_idx,kv_idx]; silu(add(s,a0))")
    code = render.wrapper(run, tensors((4, 512, 512)), capability=capability)
    assert "gdpa_forward_site(True)" in code and "gdpa_backward_site(True)" in code
    assert torch._dynamo.utils.counters["gdpa"]["lowered_cute"] == 2


def test_the_gradient_of_a_gate_goes_to_triton(monkeypatch, caplog):
    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")
    run = step("", "a0:f[h,q_idx,kv_idx]; mul(silu(s),a0)")
    with caplog.at_level(logging.INFO, "gdpa_inductor"):
        code = render.wrapper(run, tensors((4, 512, 512)), capability=100)
    assert "gdpa_forward_site(True)" in code
    assert "backward_site" not in code
    assert "no gradients of operands between the products" in caplog.text
    found = torch._dynamo.utils.counters["gdpa"]
    assert (found["lowered_cute"], found["lowered_triton"]) == (1, 1)


@pytest.mark.parametrize("capability", [90, 100])
def test_the_gradient_of_a_bias_on_jagged_sides_stays_in_cute(monkeypatch, capability: int):
    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")
    program, options = "a0:f[h,q_idx,kv_idx]; silu(add(s,a0))", "kernel=cute"

    def run(query, key, value, bias, cu):
        given, lengths = (query, key, value, [bias], [], program), (cu, cu, 300, 300)
        out = torch.ops.gdpa.attention(*given, options, *lengths)
        needs = [True] * 4
        return out, *torch.ops.gdpa.attention_backward(out, *given, needs, options, *lengths)

    matrices = [torch.empty(512, 4, 64, dtype=BF16) for _ in range(3)]
    bias = torch.empty(4, 300, 300, dtype=BF16)
    cu = torch.empty(9, dtype=torch.int32)
    code = render.wrapper(run, [*matrices, bias, cu], capability=capability)
    assert "gdpa_forward_site(True)" in code and "gdpa_backward_site(True)" in code
    assert not render.kernels(code)


@pytest.mark.parametrize("winner", ["gdpa_cute", "gdpa_forward"])
def test_max_autotune_compares_it_with_triton(monkeypatch, winner: str):
    from torch._inductor import config, select_algorithm

    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")
    timed: list[str] = []

    def choose(_, choices, nodes, layout, **__):
        timed.extend(choice.name for choice in choices)
        found = next((x for x in choices if winner in x.name), choices[0])
        return found.output_node()

    monkeypatch.setattr(select_algorithm, "autotune_select_algorithm", choose)

    def run(query, key, value):
        return torch.ops.gdpa.attention(query, key, value, [], [], "silu(s)", "")

    with config.patch(max_autotune=True):
        code = render.wrapper(run, tensors(), capability=100)
    assert any(name.startswith("gdpa_cute_") for name in timed)
    assert any("gdpa_forward" in name for name in timed)
    assert ("forward_site" in code) == (winner == "gdpa_cute")
    assert bool(render.kernels(code)) == (winner == "gdpa_forward")


def test_it_is_timed_on_the_tensors_of_the_template(monkeypatch):
    pytest.importorskip("cutlass")
    from gdpa_inductor.kernels.cute import launch
    from gdpa_inductor.kernels.triton.template import AuxRead, Plan
    from gdpa_inductor.operands import Operands
    from gdpa_inductor.ops import Arguments

    launches: list[tuple] = []
    monkeypatch.setattr(calls.lowering, "likely_size", int)
    monkeypatch.setattr(launch, "forward", lambda *given, **named: launches.append((given, named)))
    program = ScoreMod.parse("a0:f[b]; a1:f[h]; silu(add(s,a1))")
    q, k, v, bias, cu, out = (torch.zeros(n) for n in (1, 2, 3, 4, 5, 6))
    plan = Plan(
        kernel="forward", names=("p",), reads=(AuxRead(1, program.aux[1]),), jagged=frozenset("k")
    )
    sized = type("Node", (), {"get_size": lambda _: [8]})()
    operands = Operands(q, k, v, [sized, sized], [7], program, None, cu, 0, 96)
    call = Arguments(operands, options={"fast": True, "skip": False})
    calls._timed(call, plan, q, k, v, cu, bias, out=out)
    (((given,), named),) = launches
    assert (given.query, given.key, given.value) == (q, k, v)
    assert given.aux[0].shape == (8,)
    assert given.aux[1] is bias
    assert (given.scalars, given.program) == ([7], program)
    assert given.lengths == (None, cu, 0, 96)
    assert named["out"] is out and (named["fast"], named["skip"]) == (True, False)


def test_the_operators_hand_on_what_they_are_given(monkeypatch):
    pytest.importorskip("cutlass")
    from gdpa_inductor.kernels.cute import launch
    from gdpa_inductor.kernels.cute.backward import launch as backward

    found: list = []
    monkeypatch.setattr(launch, "forward", lambda *x, **named: found.append((*x, named)))
    monkeypatch.setattr(backward, "backward", lambda *x, **named: found.append((*x, named)))
    x, cu = torch.zeros(3), torch.zeros(2)
    args = ([x], [7], "a0:f[h]; mul(s,a0)")
    calls._attention(calls.FORWARD.bind(x, x, x, *args, None, cu, 0, 9, skip=False))
    needs = [True, False, True, False]
    given = {"fast": False, "ordered": False}
    calls._attention_backward(calls.BACKWARD.bind(x, x, x, x, *args, needs, **given))
    (operands, named), (grad, theirs, asked, other) = found
    assert (operands.lengths, named) == ((None, cu, 0, 9), {"skip": False})
    assert grad is x and (operands.program, operands.scalars) == (theirs.program, theirs.scalars)
    assert (asked, theirs.lengths) == (tuple(needs), (None, None, 0, 0))
    assert other == {"fast": False, "ordered": False}


@pytest.mark.parametrize(
    ("deterministic", "forbidden", "ordered"),
    [(True, False, True), (False, False, False), (False, True, True)],
    ids=["by default", "admitted", "torch forbids it"],
)
def test_dq_is_added_in_any_order_where_that_is_admitted(
    monkeypatch, deterministic: bool, forbidden: bool, ordered: bool
):
    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")
    torch.use_deterministic_algorithms(forbidden)
    try:
        code = render.wrapper(
            step(f"kernel=cute,deterministic={deterministic}"), tensors(), capability=90
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert code.count("ordered=") == 1
    assert f"ordered={ordered}" in code


def test_a_static_call_finds_its_plan_once(monkeypatch):
    """Unless an address is no multiple of 16 bytes: then others may have to be copied."""
    pytest.importorskip("cutlass")
    from gdpa_inductor.kernels.cute import launch, plan
    from gdpa_inductor.kernels.cute.sm90.config import Sm90Config

    asked: list[int] = []

    def plan_of(operands, fast, skip, kind):
        asked.append(operands.query.data_ptr() % 16)
        return plan.plan_of(operands, fast, skip, Sm90Config)

    monkeypatch.setattr(launch, "plan_of", plan_of)
    site = calls.Site(calls.FORWARD, lambda given, plan, record: plan, True)
    room = torch.zeros(2 * 2 * 16 * 64 + 8, dtype=BF16)
    shape = (2, 2, 16, 64)
    aligned, moved = room[:4096].view(shape), room[1:4097].view(shape)

    def call(query: torch.Tensor):
        return site(
            query, aligned, aligned, [], [], "silu(s)", None, None, 0, 0, fast=True, skip=True
        )

    first, again = call(aligned), call(aligned)
    assert first is again and not any(first.copied)
    assert call(moved).copied == (True, False, False)
    assert call(aligned) is first
    assert asked == [0, 2, 0]
