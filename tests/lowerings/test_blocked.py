"""The operators of a CPU, in blocks, and in chunks: what the reference computes, in any form."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from .operators import FORMS, as_they_are, in_form

F64 = torch.float64
SILU = "silu(mul(s,0.125))"


operators = pytest.fixture(params=["blocks", *FORMS])(in_form)


def strided(tensor: Tensor) -> Tensor:
    """The same values as a view of [batch, length, heads, dim]."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def columns_first(tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous().mT


def gapped(tensor: Tensor) -> Tensor:
    """The same values, with neither rows nor columns contiguous."""
    wide = tensor.new_zeros(*tensor.shape[:-1], 2 * tensor.shape[-1])
    wide[..., ::2] = tensor
    return wide[..., ::2]


@pytest.mark.parametrize("rearrange", [lambda t: t, strided, columns_first, gapped])
@pytest.mark.parametrize("heads", [(4, 4), (2, 1), (1, 4), (2, 4), (2, 2), (1, 1)])
def test_layouts_and_shared_heads(operators, rearrange, heads):
    operators.same_as_reference(SILU, rearrange=rearrange, heads=heads)


def test_key_and_value_heads_that_divide_only_the_query_heads(operators):
    operators.same_as_reference(SILU, sizes=(2, 6, 37, 53), heads=(2, 3))


@pytest.mark.parametrize(
    "batches", [(1, 3, 3), (3, 1, 1), (3, 3, 1), (1, 1, 3), (1, 1, 1), (1, 3, 1)]
)
def test_operands_that_all_batches_share(operators, batches):
    operators.same_as_reference(SILU, sizes=(max(batches), 4, 37, 53), batches=batches)
    sizes = (max(batches), 1, 37, 53)
    operators.same_as_reference(SILU, sizes=sizes, batches=batches, heads=(1, 1))


EMPTY = [(2, 4, 0, 53), (2, 4, 37, 0), (0, 4, 37, 53)]
SIZES = [(5, 1, 37, 53), (1, 5, 37, 53), (1, 1, 1, 90), (3, 2, 90, 1), (1, 1, 1, 1), (1, 6, 16, 17)]


@pytest.mark.parametrize("sizes", [*EMPTY, *SIZES])
def test_empty_single_and_tail_sizes(operators, sizes):
    operators.same_as_reference(SILU, sizes=sizes, heads=(sizes[1],) * 2)


@pytest.mark.parametrize("needed", ["3", "0", "1", "2", "03", "01", "12", ""])
def test_only_the_asked_gradients(operators, needed, monkeypatch):
    as_they_are(monkeypatch)
    needs = [str(i) in needed for i in range(4)]
    bias = torch.randn(37, 53, dtype=F64)
    text = "a0:f[q_idx,kv_idx]; silu(add(s,a0))"
    operators.same_as_reference(text, aux=[bias], needs=needs)


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=F64)


MASK = torch.rand(2, 1, 37, 53) < 0.6
AUX_CASES: dict[str, tuple[str, Sequence[Tensor]]] = {
    "full bias": ("a0:f[b,h,q_idx,kv_idx]; silu(add(s,a0))", [_random(2, 4, 37, 53)]),
    "bias by head": ("a0:f[h,q_idx,kv_idx]; silu(add(s,a0))", [_random(4, 37, 53)]),
    "transposed bias": ("a0:f[kv_idx,q_idx]; silu(add(s,a0))", [_random(53, 37)]),
    "expanded bias": (
        "a0:f[b,q_idx,kv_idx]; silu(add(s,a0))", [_random(1, 37, 53).expand(2, -1, -1)]
    ),
    "columns": ("a0:f[kv_idx]; mul(silu(s),a0)", [_random(53)]),
    "rows": ("a0:f[b,-,q_idx,-]; silu(mul(s,a0))", [_random(2, 1, 37, 1)]),
    "heads": ("a0:f[h]; silu(mul(s,a0))", [_random(4)]),
    "row, key and head": (
        "a0:f[b,q_idx]; a1:f[kv_idx]; a2:f[h]; mul(a2,sigmoid(add(mul(s,a0),a1)))",
        [_random(2, 37), _random(53), _random(4)],
    ),
    "learned scale": ("a0:f[]; silu(mul(s,a0))", [_random()]),
    "unused": ("a0:f[q_idx,kv_idx]; silu(s)", [_random(37, 53)]),
    "no score": ("a0:f[q_idx,kv_idx]; a0", [_random(37, 53)]),
    "mask": ("a0:b[b,-,q_idx,kv_idx]; where(a0,silu(s),0.0)", [MASK]),
    "float mask": ("a0:f[b,-,q_idx,kv_idx]; mul(silu(s),a0)", [MASK.double()]),
    "lengths": ("a0:i[b]; where(lt(kv_idx,a0),sigmoid(s),0.0)", [torch.tensor([20, 53])]),
    "short ints": ("a0:i[kv_idx]; mul(s,float(a0))", [torch.arange(53, dtype=torch.int32)]),
    "two masks": (
        "a0:b[b,kv_idx]; a1:i[q_idx]; where(and(a0,ge(a1,kv_idx)),silu(s),0.0)",
        [torch.rand(2, 53) < 0.5, torch.randint(0, 53, (37,))],
    ),
    "two": ("a0:f[q_idx,kv_idx]; a1:f[h]; mul(silu(add(s,a0)),a1)", [_random(37, 53), _random(4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", AUX_CASES)
def test_operands_between_the_products(operators, name):
    text, aux = AUX_CASES[name]
    operators.same_as_reference(text, aux=aux)


INDICES = "mul(relu(s),float(add(add(b,h),mul(q_idx,kv_idx))))"


@pytest.mark.parametrize(
    "text", ["where(ge(q_idx,kv_idx),silu(s),0.0)", INDICES, "2.0", "s", "float(kv_idx)"]
)
def test_programs_of_indices_alone(operators, text):
    operators.same_as_reference(text)


def test_scalars(operators):
    operators.same_as_reference("div(silu(s),float(i1))", scalars=(3, 53))
