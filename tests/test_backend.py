"""backend and pass: options, strict, expect, counters, logs, fallback, verification, neutrality.

Real compiles, on small models; one model serves most tests.
"""

import copy
import logging
import pickle
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from expecttest import assert_expected_inline
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code

import gdpa_inductor
from gdpa_inductor import GDPAError, GDPAPass, gdpa_backend
from gdpa_inductor.backend import copy_graph
from gdpa_inductor.lowerings import cpu
from gdpa_inductor.sources import source_hash
from tests._recorder import text_of

pytestmark = pytest.mark.usefixtures("no_cpu_cost_model")
SHAPE = (2, 2, 48, 16)


def fused(q, k, v):
    return F.silu(q @ k.transpose(-1, -2) * 0.25) @ v


def softmaxed(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def escaping(q, k, v):
    scores = q @ k.transpose(-1, -2)
    return F.silu(scores) @ v, scores


def plain(q, k, v):
    return F.silu(q * k).sum(-1) + F.layer_norm(v, v.shape[-1:]).mean(-1)


def operands(requires_grad: bool = False) -> list[torch.Tensor]:
    return [torch.randn(SHAPE, requires_grad=requires_grad) for _ in range(3)]


def compiled(function, **options):
    return torch.compile(
        function, backend="gdpa", options={f"gdpa.{name}": x for name, x in options.items()}
    )


@pytest.mark.parametrize("door", ["name", "object", "pass"])
def test_training_through_every_door(door: str) -> None:
    arguments = {
        "name": {"backend": "gdpa"},
        "object": {"backend": gdpa_backend, "mode": "default"},
        "pass": {"options": {"pre_grad_custom_pass": GDPAPass(expect=1)}},
    }[door]
    inputs = operands(requires_grad=True)
    out = torch.compile(fused, fullgraph=True, **arguments)(*inputs)
    expected = fused(*inputs)
    torch.testing.assert_close(out, expected)
    cotangent = torch.randn_like(out)
    grads = [torch.autograd.grad(x, inputs, cotangent) for x in (out, expected)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    assert counters["gdpa"] == {"matched": 1, "rejected": 0, "lowered_cpu": 2}


def test_counters_count_compiles_not_calls() -> None:
    function, inputs = compiled(fused), operands()
    for _ in range(3):
        function(*inputs)
    assert counters["gdpa"]["matched"] == 1 and counters["gdpa"]["lowered_cpu"] == 1


def test_the_reference_kernel_is_inlined_and_no_fallback() -> None:
    inputs = operands()
    torch.testing.assert_close(
        compiled(fused, kernel="reference", strict=True)(*inputs), fused(*inputs)
    )
    assert counters["gdpa"]["matched"] == 1
    assert counters["gdpa"]["fallback"] == counters["gdpa"]["lowered_cpu"] == 0


WRONG = {"strikt": r"did you mean gdpa\.strict\?", "strict": "must be true or false, not 'perhaps'"}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_of_torch_compile_arrive_inside_of_dynamos_error(name: str) -> None:
    """As docs/options.md says, and not before the first call: torch.compile only keeps them."""
    function = compiled(fused, **{name: "perhaps"})
    with pytest.raises(BackendCompilerFailed, match=WRONG[name]) as raised:
        function(*operands())
    assert type(raised.value.inner_exception) is ValueError


def test_a_wrong_variable_arrives_inside_of_dynamos_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDPA_STRICT", "perhaps")
    with pytest.raises(BackendCompilerFailed, match=WRONG["strict"]) as raised:
        compiled(fused)(*operands())
    assert type(raised.value.inner_exception) is ValueError


ENTRIES = {
    "the backend itself": lambda options: gdpa_inductor.gdpa_backend(
        torch.fx.symbolic_trace(fused), [], options={f"gdpa.{x}": v for x, v in options.items()}
    ),
    "GDPAPass": lambda options: GDPAPass(**options),
    "explain": lambda options: gdpa_inductor.explain(fused, **options),
    "explain, of what was compiled": lambda options: gdpa_inductor.explain(
        compiled(fused, **options)
    ),
    "rewrite": lambda options: gdpa_inductor.rewrite(torch.fx.symbolic_trace(fused), **options),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("entry", ENTRIES)
def test_wrong_options_are_value_errors_elsewhere(entry: str, name: str) -> None:
    with pytest.raises(ValueError, match=WRONG[name]):
        ENTRIES[entry]({name: "perhaps"})


def test_the_pass_cannot_verify() -> None:
    with pytest.raises(GDPAError, match=r'verify runs the compiled graph.*use backend="gdpa"'):
        GDPAPass(verify=True)


def test_an_option_without_its_prefix_is_told_in_a_line() -> None:
    """It was 20,053 characters of Inductor's names."""
    with pytest.raises(BackendCompilerFailed) as raised:
        torch.compile(fused, backend="gdpa", options={"strict": True})(*operands())
    assert_expected_inline(
        str(raised.value.inner_exception),
        """neither gdpa_inductor nor Inductor has an option 'strict'; did you mean 'gdpa.strict'?""",  # noqa: E501
    )


def test_a_kernel_that_is_not_for_the_device_is_told(caplog) -> None:
    """It was a refusal among others, in the log of those who look for it."""
    inputs = operands()
    with caplog.at_level(logging.WARNING, "gdpa_inductor"):
        out = compiled(
            lambda q, k, v: fused(q, k, v) + fused(k, v, q), kernel="triton", summary=False
        )(*inputs)
    q, k, v = inputs
    torch.testing.assert_close(out, fused(q, k, v) + fused(k, v, q))
    (record,) = (r for r in caplog.records if r.name == "gdpa_inductor")
    assert_expected_inline(
        record.getMessage(),
        """not fused: gdpa.kernel='triton' does not run on 'cpu'; there is: cpu, chunked""",
    )


def test_inductors_own_options_pass_through() -> None:
    options = {"gdpa.expect": 1, "cpp.simdlen": 1, "max_autotune": False}
    seen = []
    spy = lambda graph: seen.append(torch._inductor.config.cpp.simdlen)
    function = torch.compile(
        fused, backend="gdpa", options={**options, "post_grad_custom_post_pass": spy}
    )
    function(*operands())
    assert seen and seen[0] == 1
    torch._dynamo.reset()
    with pytest.raises((BackendCompilerFailed, RuntimeError), match="no_such_option"):
        torch.compile(fused, backend="gdpa", options={"no_such_option": 1})(*operands())


def test_mode_passes_through() -> None:
    seen = []
    spy = lambda graph: seen.append(torch._inductor.config.max_autotune)
    settings = torch._inductor.list_mode_options("max-autotune-no-cudagraphs")
    assert settings["max_autotune"]
    with torch._inductor.config.patch(post_grad_custom_post_pass=spy):
        torch.compile(fused, backend="gdpa", mode="max-autotune-no-cudagraphs")(*operands())
    assert seen and all(seen)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (
            escaping,
            {"strict": True},
            "gdpa.strict: a candidate was not fused\n.*UNSUPPORTED/SCORES_ESCAPE",
        ),
        (softmaxed, {"expect": 1}, "expect=1, regions rewritten: 0\n.*NOT_GDPA/NORMALISED"),
        (plain, {"expect": 1}, "expect=1, regions rewritten: 0\n.*there was no other candidate"),
        (fused, {"expect": 0}, "expect=0, regions rewritten: 1"),
    ],
)
def test_strict_and_expect_raise(function, options, message: str) -> None:
    with pytest.raises(BackendCompilerFailed, match=message) as raised:
        compiled(function, **options)(*operands())
    assert isinstance(raised.value.inner_exception, GDPAError)
    if function is not plain and function is not fused:
        assert "test_backend.py:" in str(raised.value.inner_exception)


def test_regions_leaves_out_a_frame_that_expect_has_refused() -> None:
    """With `suppress_errors` it runs in eager."""
    inputs = operands()
    with torch._dynamo.config.patch(suppress_errors=True):
        for expect, regions in ((1, 1), (2, 0)):
            torch._dynamo.reset()
            torch.testing.assert_close(compiled(fused, expect=expect)(*inputs), fused(*inputs))
            assert gdpa_inductor.regions() == regions


def test_strict_lets_other_operators_and_small_ones_pass() -> None:
    inputs = operands()
    torch.testing.assert_close(compiled(softmaxed, strict=True)(*inputs), softmaxed(*inputs))
    tiny = [t[:, :, :1] for t in inputs]
    torch.testing.assert_close(compiled(fused, strict=True)(*tiny), fused(*tiny))
    assert counters["gdpa"] == {"matched": 0, "rejected": 2}


def broken(*args: object) -> object:
    raise ArithmeticError("this kernel is broken")


def test_a_failing_lowering_falls_back(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    broken_cpu = replace(cpu.BACKEND, lower=broken)
    monkeypatch.setattr(cpu, "BACKEND", broken_cpu)
    inputs = operands(requires_grad=True)
    with caplog.at_level(logging.WARNING, "gdpa_inductor"):
        out = compiled(fused)(*inputs)
        ours = torch.autograd.grad(out.sum(), inputs)
    torch.testing.assert_close(out, fused(*inputs))
    theirs = torch.autograd.grad(fused(*inputs).sum(), inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert counters["gdpa"]["fallback"] == 2 and counters["gdpa"]["lowered_cpu"] == 0
    assert "ArithmeticError: this kernel is broken" in caplog.text


def test_strict_does_not_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "BACKEND", replace(cpu.BACKEND, lower=broken))
    with pytest.raises(
        Exception, match=r"fell back to the unfused formula: .*this kernel is broken"
    ):
        compiled(fused, strict=True)(*operands())


def test_what_is_found_is_logged(caplog) -> None:
    with caplog.at_level(logging.INFO, "gdpa_inductor"):
        torch.compile(lambda q, k, v: fused(q, k, v) + softmaxed(q, k, v), backend="gdpa")(
            *operands()
        )
    assert "O = (silu(s*0.25)) V" in caplog.text
    assert "NOT_GDPA/NORMALISED" in caplog.text


# Verification


@pytest.mark.parametrize("training", [False, True])
def test_verify_accepts_what_is_right(training: bool) -> None:
    function, inputs = compiled(fused, verify=True), operands(training)
    out = function(*inputs)
    torch.testing.assert_close(out, fused(*inputs))
    if training:
        out.sum().backward()
        assert all(t.grad is not None for t in inputs)


@pytest.mark.parametrize("wrong", ["forward", "backward"])
def test_verify_finds_a_wrong_kernel(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gdpa_inductor.kernels.blocked import loop

    right = loop.run

    def off(operands, results, grad_out=None, skip=True):
        right(operands, results, grad_out, skip)
        if (grad_out is None) == (wrong == "forward"):
            results.matrices["out" if wrong == "forward" else "query"].mul_(1.001)

    monkeypatch.setattr(loop, "run", off)
    if wrong == "forward":
        message = r"output 0 is off by .*\nrewritten regions:\n.*test_backend.py:\d+: O = \(silu"
    else:
        message = r"the gradient of input \d is off by"
    with pytest.raises(GDPAError, match=message):
        compiled(fused, verify=True)(*operands(requires_grad=True))


def test_verify_touches_neither_inputs_nor_generators() -> None:
    def function(q, k, v):
        v.add_(1)
        return fused(q, k, v)

    inputs = operands()
    before, state = [t.clone() for t in inputs], torch.get_rng_state()
    out = compiled(function, verify=True, expect=1)(*inputs)
    assert torch.equal(inputs[2], before[2] + 1) and torch.equal(inputs[0], before[0])
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(out, fused(before[0], before[1], before[2] + 1))


def test_verify_leaves_random_graphs_alone(caplog) -> None:
    with caplog.at_level(logging.WARNING, "gdpa_inductor"):
        compiled(lambda q, k, v: F.dropout(fused(q, k, v), 0.5), verify=True)(*operands())
    assert "draws random numbers and is not compared" in caplog.text


# Neutrality


def test_where_nothing_matches_the_generated_code_is_stocks() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

        def forward(self, q, k, v):
            return softmaxed(q, k, self.second(F.silu(self.first(v)))) + plain(q, k, v)[..., None]

    model, inputs = Model(), operands()
    codes = {}
    for backend in ("inductor", "gdpa"):
        torch._dynamo.reset()
        _, texts = run_and_get_code(torch.compile(model, backend=backend), *inputs)
        # The first line counts the graphs of the process.
        codes[backend] = [re.sub("# AOT ID.*", "", code) for code in texts]
    assert codes["gdpa"] and codes["gdpa"] == codes["inductor"]


# The pass object


def test_the_pass_is_known_by_its_sources_and_options() -> None:
    first, second = GDPAPass(strict=True), GDPAPass()
    assert first.uuid() != second.uuid()
    assert first.uuid() == GDPAPass(strict=True).uuid() and source_hash() in first.uuid()
    for copied in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert copied.uuid() == first.uuid() and copied.options == first.options
    assert torch.compiler.config.cache_key_tag.count(source_hash()) == 1


def test_a_pass_that_is_not_made_is_explained() -> None:
    options = {"pre_grad_custom_pass": GDPAPass}
    with pytest.raises(BackendCompilerFailed) as raised:
        torch.compile(fused, options=options)(*operands())
    assert_expected_inline(
        str(raised.value.inner_exception),
        """GDPAPass is a class, and takes its options by name: write options={"pre_grad_custom_pass": GDPAPass()} or GDPAPass(strict=True)""",  # noqa: E501
    )


def test_the_pass_leaves_bodies_to_the_graph_that_calls_them() -> None:
    def function(q, k, v):
        return torch.utils.checkpoint.checkpoint(fused, q, k, v, use_reentrant=False)

    inputs = operands(requires_grad=True)
    options = {"pre_grad_custom_pass": GDPAPass(expect=1)}
    out = torch.compile(function, fullgraph=True, options=options)(*inputs)
    torch.testing.assert_close(out, fused(*inputs))
    assert counters["gdpa"]["matched"] == 1


def test_a_copied_graph_shares_no_node_with_its_original() -> None:
    def function(q, k, v):
        return torch.utils.checkpoint.checkpoint(fused, q, k, v, use_reentrant=False) + 1

    graphs = []
    keep = lambda gm, _: graphs.append(gm) or gm.forward
    torch.compile(function, backend=keep)(*operands(requires_grad=True))
    (gm,) = graphs
    duplicate = copy_graph(gm)
    text = text_of(gm)
    assert text.count("graph():") == 2 and text_of(duplicate) == text
    gdpa_inductor.backend.rewrite_graph(duplicate)
    assert text_of(gm) == text and "gdpa" in text_of(duplicate)
