"""The operators of `sequences` against loops; gradients, opcheck, one compile."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.test_ops import OPCHECKS

pad, unpad = torch.ops.gdpa.jagged_to_padded_dense, torch.ops.gdpa.dense_to_jagged

# lengths, max_length, rows of nobody
FORMS = {
    "ordinary": ((3, 0, 1, 5), 5, 0),
    "cut off": ((3, 0, 1, 5), 2, 0),
    "longer than needed": ((3, 0, 1, 5), 8, 0),
    "rows of nobody": ((3, 0, 1, 5), 5, 4),
    "all empty": ((0, 0), 3, 0),
    "nothing kept": ((2, 3), 0, 0),
    "no sequences": ((), 3, 0),
    "no sequences, rows of nobody": ((), 3, 2),
}
EACH = pytest.mark.parametrize("name", FORMS)
TAILS = pytest.mark.parametrize("tail", [(), (3,), (2, 3)])


def made(name: str, tail: tuple[int, ...] = (3,), dtype=torch.float64) -> tuple[Tensor, Tensor]:
    lengths, _, extra = FORMS[name]
    cu = F.pad(torch.tensor(lengths, dtype=torch.int64).cumsum(0), (1, 0))
    return torch.randn(int(cu[-1]) + extra, *tail, dtype=dtype), cu


@EACH
@TAILS
def test_padding_by_hand(name: str, tail: tuple[int, ...]) -> None:
    values, cu = made(name, tail)
    lengths, longest, _ = FORMS[name]
    expected = values.new_zeros(len(lengths), longest, *tail)
    for b, length in enumerate(lengths):
        kept = min(length, longest)
        expected[b, :kept] = values[int(cu[b]) : int(cu[b]) + kept]
    for offsets in (cu, cu.int()):
        assert torch.equal(pad(values, offsets, longest), expected)


@EACH
@TAILS
def test_unpadding_by_hand(name: str, tail: tuple[int, ...]) -> None:
    values, cu = made(name, tail)
    lengths, longest, _ = FORMS[name]
    dense = torch.randn(len(lengths), longest, *tail, dtype=torch.float64)
    expected = torch.zeros_like(values)
    for b, length in enumerate(lengths):
        kept = min(length, longest)
        expected[int(cu[b]) : int(cu[b]) + kept] = dense[b, :kept]
    assert torch.equal(unpad(dense, cu, values.shape[0]), expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    values, cu = made("cut off")
    values = (values * 4).to(dtype)
    padded = pad(values, cu, 5)
    assert padded.dtype == dtype and torch.equal(unpad(padded, cu, values.shape[0]), values)


def test_what_takes_no_part_is_not_read() -> None:
    values, cu = made("rows of nobody")
    values[int(cu[-1]) :] = float("nan")
    padded = pad(values, cu, 5)
    assert padded.isfinite().all()
    padded[1] = padded[0, 3:] = float("nan")
    assert unpad(padded, cu, values.shape[0]).isfinite().all()


DISORDER = {
    "decreasing": (2, 3, 1, 6),
    "a row of two": (0, 5, 2, 7),
    "all empty": (3, 3, 1, 1),
    "not from 0": (5, 2, 0, 8),
    "below the first row": (-2, 3, 4, 8),
    "behind the last row": (0, 3, 7, 30),
    "far away": (-(2**40), 2**40, -(2**40), 2),
}


@pytest.mark.parametrize("name", DISORDER)
def test_offsets_in_disorder(name: str) -> None:
    """Ends before beginnings are empty sequences; of a row's owners the last one writes it."""
    cu, total, longest = torch.tensor(DISORDER[name]), 8, 4
    values = torch.randn(total, 3, dtype=torch.float64, requires_grad=True)
    dense = torch.randn(3, longest, 3, dtype=torch.float64, requires_grad=True)
    padded, rows = torch.zeros_like(dense), torch.zeros_like(values)
    for b, (begin, end) in enumerate(pairwise(DISORDER[name])):
        for place, row in enumerate(range(begin, min(end, begin + longest))):
            if 0 <= row < total:
                padded[b, place], rows[row] = values[row].detach(), dense[b, place].detach()
    found = pad(values, cu, longest)
    assert torch.equal(found, padded)
    assert torch.equal(torch.autograd.grad(found, values, dense.detach())[0], rows)
    found = unpad(dense, cu, total)
    assert torch.equal(found, rows)
    assert torch.equal(torch.autograd.grad(found, dense, values.detach())[0], padded)


@EACH
def test_gradients(name: str) -> None:
    values, cu = made(name)
    lengths, longest, _ = FORMS[name]
    dense = torch.randn(len(lengths), longest, 3, dtype=torch.float64, requires_grad=True)
    values.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: pad(x, cu, longest), values)
    assert torch.autograd.gradcheck(lambda x: unpad(x, cu, values.shape[0]), dense)
    assert torch.autograd.gradgradcheck(lambda x: pad(x, cu, longest), values)


@pytest.mark.parametrize("name", ["ordinary", "cut off", "no sequences"])
def test_opcheck(name: str) -> None:
    values, cu = made(name)
    lengths, longest, _ = FORMS[name]
    values.requires_grad_()
    dense = torch.randn(len(lengths), longest, 3, requires_grad=True)
    torch.library.opcheck(pad.default, (values, cu, longest), test_utils=OPCHECKS)
    torch.library.opcheck(unpad.default, (dense, cu, values.shape[0]), test_utils=OPCHECKS)
