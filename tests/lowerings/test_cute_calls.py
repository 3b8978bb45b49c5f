"""The CuTe kernels as the generated code calls them, and what a call hands on."""

import logging
import re
from typing import Any

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from gdpa_inductor.kernels.cute import certificates
from gdpa_inductor.lowerings.cute import calls, rules
from gdpa_inductor.program.score_mod import ScoreMod
from tests.kernels import render

BF16 = torch.bfloat16


BIASED = "a0:f[h,q_idx,kv_idx]; silu(add(s,a0))"


@pytest.fixture(autouse=True)
def cutlass(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is installed, and the machine has proved its kernels."""
    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")
    monkeypatch.setattr(certificates, "objection", lambda *_: "")


def step(options: str, program: str = "silu(mul(s,0.125))", lengths: tuple[int, ...] = ()):
    """The forward and the gradients of q, k, v and of operands. lengths: the longest of jagged
    sides, whose offsets come last."""

    def run(query, key, value, *aux):
        *aux, cu = [*aux, None] if not lengths else aux
        rest = (cu, cu, *lengths) if lengths else ()
        operands = (query, key, value, aux, [], program)
        out = torch.ops.gdpa.attention(*operands, options, *rest)
        needs = [True] * (3 + len(aux))
        return out, *torch.ops.gdpa.attention_backward(out, *operands, needs, options, *rest)

    return run


def tensors(*more: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=BF16) for shape in ((2, 4, 512, 64),) * 3 + more]


def test_without_cutlass_the_generated_code_calls_triton(monkeypatch, caplog):
    monkeypatch.setattr(rules, "installed", lambda: None)
    with caplog.at_level(logging.WARNING, "gdpa_inductor"):
        code = render.wrapper(step("kernel=cute"), tensors(), capability=100)
    assert "_site" not in code
    assert len(render.kernels(code)) >= 3
    assert "nvidia-cutlass-dsl is not installed" in caplog.text
    assert torch._dynamo.utils.counters["gdpa"]["lowered_triton"] == 2


SUMS = "a0:f[b,h,q_idx]; t0=relu(s); r=mul(a0,t0); t0"


def step_with_sums(query, key, value, cotangent):
    """The forward, and the gradients of matrices where row sums have one."""
    out, sums = torch.ops.gdpa.attention_sums(
        query, key, value, [], [], "t0=relu(s); r=t0; t0", "kernel=cute"
    )
    needs, operands = [True] * 3 + [False], (query, key, value, [cotangent], [], SUMS)
    grads = torch.ops.gdpa.attention_backward(out, *operands, needs, "kernel=cute")
    return out / sums[..., None], *grads


def test_the_generated_code_calls_the_kernels_of_row_sums():
    cotangent = torch.empty(2, 4, 512)
    code = render.wrapper(step_with_sums, [*tensors(), cotangent], capability=90)
    assert "calls_forward_site(True, True)" in code and "calls_backward_site(True)" in code
    assert torch._dynamo.utils.counters["gdpa"]["lowered_cute"] == 2


JAGGED_SHAPES = ((512, 4, 64),) * 3 + ((4, 300, 300),)
STEPS = {
    "plain": (step("kernel=cute"), tensors()),
    "a bias": (step("kernel=cute", BIASED), tensors((4, 512, 512))),
    "a bias, jagged": (
        step("kernel=cute", BIASED, (300, 300)),
        [*(torch.empty(x, dtype=BF16) for x in JAGGED_SHAPES), torch.empty(9, dtype=torch.int32)],
    ),
}


@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize("name", STEPS)
def test_the_generated_code_calls_the_kernels(name: str, capability: int):
    """Of both directions, the gradient of a bias among them."""
    code = render.wrapper(*STEPS[name], capability=capability)
    assert "calls_forward_site(True)" in code and "calls_backward_site(True)" in code
    assert not render.kernels(code) or name == "a bias"
    assert torch._dynamo.utils.counters["gdpa"]["lowered_cute"] == 2


def test_the_gradient_of_a_gate_goes_to_triton(caplog):
    run = step("", "a0:f[h,q_idx,kv_idx]; mul(silu(s),a0)")
    with caplog.at_level(logging.INFO, "gdpa_inductor"):
        code = render.wrapper(run, tensors((4, 512, 512)), capability=100)
    assert "calls_forward_site(True)" in code
    assert "backward_site" not in code
    assert "no gradients of operands between the products" in caplog.text
    result = torch._dynamo.utils.counters["gdpa"]
    assert (result["lowered_cute"], result["lowered_triton"]) == (1, 1)


def test_head_dims_that_vary_become_constants(monkeypatch):
    """The kernels take no head dim of 100, and nothing else would be asked then."""
    known: list[ShapeEnv] = []

    def symbolic(mode, tensor, *_):
        known.append(mode.shape_env)
        real = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        kinds = [*[DimDynamic.STATIC] * (tensor.dim() - 1), DimDynamic.DYNAMIC]
        context = StatelessSymbolicContext(kinds)
        result = mode.from_tensor(real, symbolic_context=context, static_shapes=False)
        with mode:
            return torch.empty(result.shape, dtype=tensor.dtype, device="cuda")

    monkeypatch.setattr(render, "_fake", symbolic)
    dims = (64, 64, 72)
    arguments = [torch.empty(2, 4, 512, dim, dtype=BF16) for dim in dims]
    code = render.wrapper(step("kernel=cute"), arguments, capability=90, dynamic=True)
    assert "calls_forward_site(" in code and "calls_backward_site(" in code
    assert {64, 72} <= set(map(int, known[0].replacements.values()))


def test_the_code_of_sizes_that_vary_says_so():
    """Then launches are kept by form."""
    code = render.wrapper(step("kernel=cute"), tensors(), capability=100, dynamic=True)
    assert "calls_forward_site(False)" in code and "calls_backward_site(False)" in code


@pytest.mark.parametrize("name", ["a bias, jagged", "a bias"])
def test_the_code_of_rows_that_vary_says_so(name: str, monkeypatch):
    """Of jagged sides. Then a launch is found by how many rows there are, and no other size."""
    fake = render._fake

    def symbolic(mode, tensor, number, _):
        if tensor.shape[0] != 512:
            return fake(mode, tensor, number, False)
        kinds = [DimDynamic.DUCK, *[DimDynamic.STATIC] * (tensor.dim() - 1)]
        context = StatelessSymbolicContext(kinds)
        real = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        result = mode.from_tensor(real, symbolic_context=context, static_shapes=False)
        with mode:
            return torch.empty(result.shape, dtype=tensor.dtype, device="cuda")

    monkeypatch.setattr(render, "_fake", symbolic)
    run, arguments = STEPS[name]
    if name == "a bias":
        arguments = [torch.empty(512, *x.shape[1:], dtype=BF16) for x in arguments[:3]]
        run = step("kernel=cute")
    code = render.wrapper(run, arguments, capability=90, dynamic=True)
    known = "(4, 300, 300)" if "jagged" in name else "False"
    assert f"calls_forward_site({known})" in code and f"calls_backward_site({known})" in code


def test_calls_of_two_backends_take_turns():
    """The code imports the function of each of them once, and calls it for each call site."""
    turns = ["cute", "chunked", "cute", "chunked"]

    def run(query, key, value):
        for kernel in turns:
            options = f"kernel={kernel}"
            query = torch.ops.gdpa.attention(query, key, value, [], [], "silu(s)", options)
        return query

    code = render.wrapper(run, tensors(), capability=90)
    lines = re.findall(r"^\S.*(?:forward_site|chunked_call).*", code, re.M)
    entries: dict[str, Any] = {}
    exec("\n".join(lines), entries)
    called = [name for name in re.findall(r"^gdpa_\w+ = (\w+)\(", code, re.M) if name in entries]
    names = {"cute": "cute_calls_forward_site", "chunked": "blocked_chunked_call"}
    assert called == [f"gdpa_inductor_lowerings_{names[turn]}" for turn in turns]
    assert len(lines) == len(turns) + 2 and all(map(callable, map(entries.get, called)))


@pytest.mark.parametrize("winner", ["gdpa_cute", "gdpa_forward"])
def test_max_autotune_compares_it_with_triton(monkeypatch, winner: str):
    from torch._inductor import config, select_algorithm

    timed: list[str] = []

    def choose(_, choices, nodes, layout, **__):
        timed.extend(choice.name for choice in choices)
        result = next((x for x in choices if winner in x.name), choices[0])
        return result.output_node()

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
    from gdpa_inductor.kernels.triton.template import AuxRead, Plan
    from gdpa_inductor.operands import Operands
    from gdpa_inductor.ops import Arguments

    launches: list[tuple] = []
    monkeypatch.setattr(calls.lowering, "likely_size", int)
    monkeypatch.setattr(calls, "forward", lambda *inputs, **named: launches.append((inputs, named)))
    program = ScoreMod.parse("a0:f[b]; a1:f[h]; silu(add(s,a1))")
    q, k, v, bias, cu, out = (torch.zeros(n) for n in (1, 2, 3, 4, 5, 6))
    plan = Plan(
        kernel="forward", names=("p",), reads=(AuxRead(1, program.aux[1]),), jagged=frozenset("k")
    )
    sized = type("Node", (), {"get_size": lambda _: [8]})()
    operands = Operands(q, k, v, [sized, sized], [7], program, None, cu, 0, 96)
    call = Arguments(operands, options={"fast": True, "skip": False})
    calls._timed(call, plan, q, k, v, cu, bias, out=out)
    (((inputs,), named),) = launches
    assert (inputs.query, inputs.key, inputs.value) == (q, k, v)
    assert inputs.aux[0].shape == (8,)
    assert inputs.aux[1] is bias
    assert (inputs.scalars, inputs.program) == ([7], program)
    assert inputs.lengths == (None, cu, 0, 96)
    assert named["out"] is out and (named["fast"], named["skip"]) == (True, False)


def test_the_operators_hand_on_what_they_are_given(monkeypatch):
    results: list = []
    monkeypatch.setattr(calls, "forward", lambda *x, **named: results.append((*x, named)))
    monkeypatch.setattr(calls, "backward", lambda *x, **named: results.append((*x, named)))
    x, cu = torch.zeros(3), torch.zeros(2)
    args = ([x], [7], "a0:f[h]; mul(s,a0)")
    calls._attention(calls.FORWARD.bind(x, x, x, *args, None, cu, 0, 9, skip=False))
    needs = [True, False, True, False]
    settings = {"fast": False, "ordered": False}
    calls._attention_backward(calls.BACKWARD.bind(x, x, x, x, *args, needs, **settings))
    (operands, named), (grad, theirs, requests, other) = results
    assert (operands.lengths, named) == ((None, cu, 0, 9), {"skip": False})
    assert grad is x and (operands.program, operands.scalars) == (theirs.program, theirs.scalars)
    assert (requests, theirs.lengths) == (tuple(needs), (None, None, 0, 0))
    assert other == {"fast": False, "ordered": False}


@pytest.mark.parametrize(
    ("deterministic", "forbidden", "ordered"),
    [(True, False, True), (False, False, False), (False, True, True)],
    ids=["by default", "admitted", "torch forbids it"],
)
def test_dq_is_added_in_any_order_where_that_is_admitted(
    deterministic: bool, forbidden: bool, ordered: bool
):
    run = step(f"kernel=cute,deterministic={deterministic}")
    torch.use_deterministic_algorithms(forbidden)
    try:
        code = render.wrapper(run, tensors(), capability=90)
    finally:
        torch.use_deterministic_algorithms(False)
    assert code.count("ordered=") == 1
    assert f"ordered={ordered}" in code
