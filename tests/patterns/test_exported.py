"""The idiom table as exported programs, and the public function in one."""

import pytest
import torch
import torch.nn.functional as F

import gdpa_inductor
from tests.operands import make_operands
from tests.patterns import test_idioms  # noqa: F401  (it fills the table)
from tests.patterns.rows import ROWS, SIZES, Row


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, **operands):
        return self.function(**operands)


def rewritten(function, operands, decomposed=False):
    program = torch.export.export(Model(function), (), operands)
    if decomposed:
        program = program.run_decompositions({})
    result, report = gdpa_inductor.rewrite(program, profit=False)
    return result.module(), report


def _cases() -> list:
    """Activations take long, and what export makes of them is what compiling does."""
    marks = lambda row: [pytest.mark.slow] if row.name.startswith("act_") else []
    fused = [row for row in ROWS if row.verdict == "fuse"]
    return [pytest.param(row, id=row.name, marks=marks(row)) for row in fused]


@pytest.mark.parametrize("row", _cases())
def test_idiom(row: Row) -> None:
    leaves = make_operands(row.specs, SIZES)
    operands = {x: t.detach() if torch.is_tensor(t) else t for x, t in leaves.items()}
    result, report = rewritten(row.function, operands)
    assert len(report.matches) == row.regions, str(report)
    torch.testing.assert_close(result(**operands), row.function(**operands))


def causal(query, key, value):
    mods = {"score_mod": lambda s, b, h, n, m: F.silu(s), "mask_mod": lambda b, h, n, m: n >= m}
    return gdpa_inductor.attention(query, key, value, **mods)


def cast(query, key, value):
    return F.silu((query @ key.mT).float()).to(value.dtype) @ value


@pytest.mark.parametrize("decomposed", [False, True])
def test_an_assertion_beside_a_cast_of_the_output_keeps_no_rows_padded(decomposed) -> None:
    def attend(query, key, value, offsets):
        padded = (torch.ops.gdpa.jagged_to_padded_dense(x, offsets, 6) for x in (query, key, value))
        out = cast(*padded).float()
        return torch.ops.gdpa.dense_to_jagged(out, offsets, 10)

    inputs = {x: torch.randn(10, 8, dtype=torch.bfloat16) for x in ("query", "key", "value")}
    operands = {**inputs, "offsets": torch.tensor([0, 3, 3, 9, 10])}
    result, report = rewritten(attend, operands, decomposed)
    (match,) = report.matches
    assert match.problem.jagged_query and match.problem.jagged_key and not match.notes
    torch.testing.assert_close(result(**operands), attend(**operands), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [causal, cast])
def test_an_assertion_beside_a_cast_is_no_escape(function, dtype, decomposed) -> None:
    """Export writes down of what dtype and device a tensor is before it is cast."""
    generator = torch.Generator().manual_seed(0)
    operands = {
        x: (0.5 * torch.randn(2, 2, 24, 16, generator=generator)).to(dtype)
        for x in ("query", "key", "value")
    }
    result, report = rewritten(function, operands, decomposed)
    assert len(report.matches) == 1, str(report)
    bound = 10 * torch.finfo(dtype).eps  # eager rounds scores of 16 bits before they are cast
    torch.testing.assert_close(result(**operands), function(**operands), rtol=bound, atol=bound)


def without_gradients(query, key, value):
    with torch.no_grad():
        weights = F.silu(query @ key.mT * 0.25)
        return weights @ value


def in_16_bits(query, key, value):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.silu(query @ key.mT * 0.25) @ value


def in_16_bits_without_gradients(query, key, value):
    with torch.no_grad():
        return in_16_bits(query, key, value)


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("function", [without_gradients, in_16_bits, in_16_bits_without_gradients])
def test_parts_under_other_switches_are_read(function, decomposed) -> None:
    """Export keeps them as graphs of their own, which higher-order operators run."""
    generator = torch.Generator().manual_seed(0)
    operands = {
        x: torch.randn(2, 2, 40, 16, generator=generator) for x in ("query", "key", "value")
    }
    result, report = rewritten(lambda **inputs: function(**inputs) * 2.0, operands, decomposed)
    assert len(report.matches) == 1, str(report)
    actual, wanted = result(**operands), function(**operands) * 2.0
    assert actual.dtype == wanted.dtype
    exact = without_gradients(**{x: t.double() for x, t in operands.items()}) * 2.0
    mine, theirs = ((x.double() - exact).norm() / exact.norm() for x in (actual, wanted))
    assert mine <= theirs + 1e-6


def test_frozen_inputs_may_change_before_the_backward() -> None:
    """Eager keeps neither query nor key, which have no gradients; the op would."""

    def attention(q, k, v, bias):
        return F.relu(q @ k.mT + bias) ** 2 @ v

    q, k, v = (torch.randn(2, 2, 4, 5) for _ in range(3))
    inputs = {"q": q, "k": k, "v": v.requires_grad_(), "bias": torch.randn(4, requires_grad=True)}
    result, report = rewritten(attention, inputs)
    assert len(report.matches) == 1, report
    trained = [inputs["v"], inputs["bias"]]
    expected = torch.autograd.grad(attention(**inputs).sum(), trained)
    out = result(**inputs)
    with torch.no_grad():
        q.zero_()
        k.zero_()
    torch.testing.assert_close(torch.autograd.grad(out.sum(), trained), expected)


def test_the_key_of_a_query_that_was_cut_in_place_may_change_before_the_backward() -> None:
    """Eager keeps no key, for the query has no gradient; an exported graph does not say so."""

    def attention(q, k, v):
        q = q * 1.0
        q.detach_()
        return F.relu(q @ k.mT) @ v

    inputs = {x: torch.randn(2, 2, 4, 5).requires_grad_() for x in "qkv"}
    result, report = rewritten(attention, inputs)
    assert len(report.matches) == 1, report
    trained = [inputs["k"], inputs["v"]]
    expected = torch.autograd.grad(attention(**inputs).sum(), trained)
    out = result(**inputs)
    with torch.no_grad():
        inputs["k"].zero_()
    torch.testing.assert_close(torch.autograd.grad(out.sum(), trained), expected)


class Scores(torch.nn.Module):
    def forward(self, query, key):
        return query @ key.mT


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = Scores()

    def forward(self, query, key, value):
        return F.silu(self.scores(query, key)) @ value


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(), Layer()

    def forward(self, query, key, value):
        actual = self.first(query, key, value)
        return self.second(actual, key, value) + actual


@pytest.mark.parametrize("preserved, fused", [(["first", "second"], 2), (["second.scores"], 1)])
def test_preserved_signatures_of_modules_stay(preserved, fused) -> None:
    """The operands and results of such a module are still nodes of the program."""
    operands = [torch.randn(2, 2, 5, 4, dtype=torch.float64) for _ in range(3)]
    program = torch.export.export(
        Layers(), tuple(operands), preserve_module_call_signature=tuple(preserved)
    )
    result, report = gdpa_inductor.rewrite(program, profit=False)
    assert len(report.matches) == fused, str(report)
    assert len(result.graph_signature.user_outputs) == 1
    for run in (result.module(), torch.export.unflatten(result)):
        torch.testing.assert_close(run(*operands), Layers()(*operands))
