"""The operators' signatures: what exported programs hold, and calls by name."""

import pytest
import torch

from gdpa_inductor.lowerings.cute import calls
from gdpa_inductor.ops import ATTENTION, BACKWARD, CPU_BACKWARD, CPU_FORWARD

OPERANDS = "Tensor query, Tensor key, Tensor value, Tensor[] aux, SymInt[] scalars, str score_mod"
LENGTHS = (
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "SymInt max_seqlen_q=0, SymInt max_seqlen_k=0"
)
PAGED = f"{LENGTHS}, Tensor? page_table=None"
SCHEMAS = {
    ATTENTION: f"attention({OPERANDS}, str kernel_options, {PAGED}) -> Tensor",
    BACKWARD: (
        f"attention_backward(Tensor grad_out, {OPERANDS}, bool[] needs, str kernel_options, "
        f"{LENGTHS}) -> Tensor[]"
    ),
    CPU_FORWARD: f"attention_cpu({OPERANDS}, {PAGED}, *, bool skip=True) -> Tensor",
    CPU_BACKWARD: (
        f"attention_cpu_backward(Tensor grad_out, {OPERANDS}, bool[] needs, {LENGTHS}, *, "
        "bool skip=True) -> Tensor[]"
    ),
    calls.FORWARD: (
        f"attention_cute({OPERANDS}, {LENGTHS}, Tensor? page_table=None, *, bool fast=True, "
        "bool skip=True) -> Tensor"
    ),
    calls.FORWARD.with_sums: (
        f"attention_cute_sums({OPERANDS}, {LENGTHS}, Tensor? page_table=None, *, bool fast=True, "
        "bool skip=True) -> "
        "(Tensor, Tensor)"
    ),
    calls.BACKWARD: (
        f"attention_cute_backward(Tensor grad_out, {OPERANDS}, bool[] needs, {LENGTHS}, *, "
        "bool fast=True, bool skip=True, bool ordered=True) -> Tensor[]"
    ),
}
each = pytest.mark.parametrize("signature", SCHEMAS, ids=lambda s: s.name)


@each
def test_the_schema_is_what_exported_programs_hold(signature):
    assert signature.schema == SCHEMAS[signature]
    assert str(signature.op._schema) == f"gdpa::{SCHEMAS[signature]}"


@each
def test_a_call_by_name_is_the_call_by_position(signature):
    tensors = [torch.zeros(n) for n in range(1, 7)]
    grad, query, key, value, aux, offsets = tensors
    program = "a0:f[h]; mul(silu(s),a0)"
    leading = [grad] if signature.backward else []
    needs = [[True, False, True, True]] if signature.backward else []
    options = [] if signature.keywords else ["kernel=cpu"]
    lengths, pages = (None, offsets, 0, 9), [offsets] if signature.pages else []
    args = (*leading, query, key, value, [aux], [7], program, *needs, *options, *lengths, *pages)
    keywords = dict.fromkeys(signature.keywords, False)
    arguments = signature.bind(*args, **keywords)
    assert arguments.operands.cu_seqlens_k is offsets and arguments.operands.max_seqlen_k == 9
    assert (arguments.grad_out is grad) == signature.backward
    positional, named = signature.call(arguments)
    assert named == keywords
    assert len(positional) == len(args) == len(signature.positional)
    for x, y in zip(positional, args, strict=True):
        assert x is y or x == y


def test_trailing_defaults_may_be_left_out():
    x = torch.zeros(1)
    arguments = ATTENTION.bind(x, x, x, None, None, "silu(s)", "")
    assert arguments.operands.lengths == (None, None, 0, 0)
    assert ATTENTION.bind(x, x, x, [], [], "silu(s)", "", None, x).operands.page_table is None
    assert arguments.operands.aux == [] and arguments.options == {"kernel_options": ""}


def test_all_may_be_given_by_name():
    x, offsets = torch.zeros(1), torch.zeros(2)
    named = {"query": x, "key": x, "value": x, "aux": [x], "scalars": [7], "score_mod": "s"}
    arguments = BACKWARD.bind(
        x, **named, needs=[True] * 4, kernel_options="", cu_seqlens_k=offsets, max_seqlen_k=9
    )
    assert arguments.operands.lengths == (None, offsets, 0, 9)
    assert (arguments.grad_out is x, arguments.needs) == (True, (True,) * 4)
    assert arguments.options == {"kernel_options": ""}
    fused = calls.FORWARD.bind(**named, skip=False)
    assert fused.operands.scalars == [7] and fused.options == {"skip": False}


def test_what_has_no_default_must_be_given():
    x = torch.zeros(1)
    with pytest.raises(KeyError, match="score_mod"):
        calls.FORWARD.bind(x, x, x, [], [], fast=True)
