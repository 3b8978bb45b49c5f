"""Chunks on torch's products, on the card: the error rule for every kind of operand, equal bits."""

from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from tests.gpu import checks
from tests.gpu.programs import CASES, SELF, Case, _causal, _plain
from tests.gpu.test_kernels import bits, breach, operands_of

pytestmark = pytest.mark.cuda
DTYPES = [torch.bfloat16, torch.float32, torch.float64]
WIDE = {
    "value dim 1024": Case(_plain, SELF, {"e": 1024, "m": 700, "h": 1}),
    "head dims 320 and 200": Case(_plain, SELF, {"d": 320, "e": 200}),
    "several chunks": Case(_plain, SELF, {"m": 5000, "h": 2}),
    "several chunks, causal": Case(_causal, SELF, {"m": 5000, "h": 1, "e": 512}),
}


compiled = partial(checks.compiled, kernel="chunked")


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("name", {**CASES, **WIDE})
def test_error_rule(name: str, dtype: torch.dtype) -> None:
    case = {**CASES, **WIDE}[name]
    counters.clear()
    assert not breach(case, compiled(case.function), dtype)
    assert counters["gdpa"]["lowered_chunked"] == 2


HEADS = {  # at head dims of one kernel for P and dS
    "192": Case(_plain, SELF, {"d": 192, "e": 192, "m": 700}),
    "256, several chunks": Case(_plain, SELF, {"d": 256, "e": 256, "m": 5000, "h": 2}),
    "256, parts of a head": Case(_plain, SELF, {"d": 256, "e": 256, "m": 9000, "h": 1}),
    "160, causal": Case(_causal, SELF, {"d": 160, "e": 160, "m": 2100}),
    "256 and 192, causal, parts": Case(_causal, SELF, {"d": 256, "e": 192, "m": 9000, "h": 1}),
    "136 and 40, tails": Case(_plain, SELF, {"d": 136, "e": 40, "m": 333}),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("name", HEADS)
def test_wide_heads(name: str, dtype: torch.dtype) -> None:
    case = HEADS[name]
    assert not breach(case, compiled(case.function), dtype)


def test_a_step_at_wide_heads_has_a_fused_forward() -> None:
    case = HEADS["256, parts of a head"]
    counters.clear()
    assert not breach(case, checks.compiled(case.function), torch.bfloat16)
    chunked = torch.cuda.get_device_capability()[0] == 9
    assert counters["gdpa"]["lowered_chunked"] == chunked
    assert counters["gdpa"]["fallback"] == 0


@pytest.mark.parametrize("name", ["256, several chunks", "256 and 192, causal, parts"])
def test_equal_bits_at_wide_heads(name: str) -> None:
    case = HEADS[name]
    operands, function = operands_of(case, torch.bfloat16), compiled(case.function)
    checks.check_bits(lambda: bits(function, operands))


@pytest.mark.parametrize("name", ["value dim 1024", "several chunks"])
def test_equal_bits(name: str) -> None:
    case = WIDE[name]
    operands, function = operands_of(case, torch.bfloat16), compiled(case.function)
    checks.check_bits(lambda: bits(function, operands))
