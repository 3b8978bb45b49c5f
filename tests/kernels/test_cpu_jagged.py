"""The jagged CPU kernel against the reference; bits, leaks and memory."""

import functools
import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gdpa_inductor.kernels.blocked import block_pass as cpu_pass
from gdpa_inductor.kernels.blocked import jagged
from tests.jagged_cases import CASES, JaggedCase, poisoned, sides_of, take
from tests.lowerings.operators import CPU, as_they_are, in_small_blocks

forward_op, backward_op = CPU.forward, CPU.backward
small_blocks = pytest.fixture(in_small_blocks)
# What is under test is which views a pass is given.
uncompiled = pytest.fixture(as_they_are)


def both(case: JaggedCase, tensors: list[Tensor], cotangent: Tensor) -> list[Tensor]:
    """The output and every gradient, of the CPU ops."""
    tensors = [t.detach() for t in tensors]
    needs = [t.is_floating_point() for t in tensors]
    return [
        forward_op(*case.arguments(tensors)),
        *backward_op(cotangent, *case.arguments(tensors, needs)),
    ]


def expected(case: JaggedCase, tensors: list[Tensor], cotangent: Tensor) -> list[Tensor]:
    tensors = [t.detach() for t in tensors]
    needs = [t.is_floating_point() for t in tensors]
    return [
        case.call(tensors),
        *torch.ops.gdpa.attention_backward(cotangent, *case.arguments(tensors, needs, "")),
    ]


def check(case: JaggedCase, dtype: torch.dtype = torch.float64) -> None:
    tensors = case.tensors(dtype)
    cotangent = torch.randn_like(case.call(tensors))
    for got, want in zip(
        both(case, tensors, cotangent), expected(case, tensors, cotangent), strict=True
    ):
        assert got.is_contiguous() and got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_every_form(name: str, uncompiled) -> None:
    check(CASES[name])


def test_short_sequences_run_together(monkeypatch: pytest.MonkeyPatch, uncompiled) -> None:
    """Of about one size; empty ones, single ones and long ones stay alone."""
    seen = []
    original = jagged.JaggedPart.operands

    def noted(self, *args):
        if not self.is_alone:
            seen.append(sorted(self.numbers.tolist()))
        return original(self, *args)

    monkeypatch.setattr(jagged.JaggedPart, "operands", noted)
    lengths = (3, 0, 30, 16, 17, 200, 32, 5, 64)
    check(replace(CASES["token and head"], rows=lengths, cols=lengths))
    assert seen == [[0, 3, 7], [2, 4, 6]] * 2
    seen.clear()
    monkeypatch.setattr(jagged, "_MOST", 2)
    check(replace(CASES["full bias, truncated"], rows=lengths, cols=lengths, longest=(20, 18)))
    assert seen == [[0, 7], [3], [2, 6], [4, 8], [5]] * 2


@pytest.mark.parametrize("name", CASES)
def test_every_form_of_short_sequences(name: str, uncompiled) -> None:
    """At least three to a group, with the operands of each case."""
    case = CASES[name]
    rows, cols = (side and (*side, *side, *side) for side in (case.rows, case.cols))
    dense = (3 * case.batch if case.dense_cols[0] > 1 else 1, 16)
    queries = (3 * case.batch if case.dense_rows[0] > 1 else 1, 16)
    check(replace(case, rows=rows, cols=cols, dense_cols=dense, dense_rows=queries))


TABLES = "HSTU: tables by position and time"
LONG = {"rows": (37, 0, 1, 53), "cols": (37, 0, 1, 53)}


@pytest.mark.parametrize("name", ["own offsets", "token and head", "full bias, truncated", TABLES])
def test_in_blocks_and_compiled(name: str, small_blocks) -> None:
    longest = (40, 50) if CASES[name].longest[0] else (None, None)
    check(replace(CASES[name], **LONG, longest=longest))


def test_one_compile_for_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths and strides vary, 0 and 1 among them: one variant of the pass serves short sequences
    together, one those that are alone.
    """
    seen = []
    original = cpu_pass.inductor.compile_graph

    def counted(*args, **kwargs):
        seen.append(kwargs["dynamic"])
        return original(*args, **kwargs)

    monkeypatch.setattr(cpu_pass.inductor, "compile_graph", counted)
    text = "a0:f[h,q_idx,kv_idx]; silu(mul(add(mul(s,0.3125),a0),1.75))"
    for _ in range(20):
        lengths = torch.randint(0, 40, (6,)).tolist()
        cu = torch.tensor([0, *lengths, 1]).cumsum(0)
        q, k, v = (torch.randn(int(cu[-1]), 3, 8) for _ in range(3))
        longest = max(lengths) + int(torch.randint(0, 2, ()))
        bias = torch.randn(3, longest, longest)
        forward_op(q, k, v, [bias], [], text, cu, cu, longest, longest)
    assert seen == [True, True]


POISON = ["self", "own offsets", "truncated", "rows of nobody", "token operands", "PFFN",
          "a row of bias per token", "delta queries",
          "HSTU: tables by position and time", "a row of a table per token"]  # fmt: skip


@pytest.mark.parametrize("name", POISON)
def test_nothing_leaks_from_neighbours(name: str, uncompiled) -> None:
    case = replace(CASES[name], rows=CASES[name].rows and (3, 0, 2, 5), tail=2)
    clean = case.tensors()
    cotangent = torch.randn_like(case.call(clean))
    wanted = both(case, clean, cotangent)[:4]
    for b in range(case.batch):
        dirty, dirty_cotangent, parts = poisoned(case, clean, cotangent, b)
        found = both(case, dirty, dirty_cotangent)[:4]
        for got, want, part in zip(found, wanted, parts, strict=True):
            assert torch.equal(got[part], want[part])


@pytest.mark.parametrize("keys", [31, 48])
@pytest.mark.parametrize("name", ["self", "own offsets", "token operands", "PFFN", "PMA", TABLES])
def test_the_place_in_the_batch_changes_no_bit(name: str, keys: int) -> None:
    """Outputs and gradients of a sequence, in fp32 and compiled, wherever it stands."""
    lengths = (37, 0, 1, 200, 64, 23, 5, 12, 40, 14, 60)
    rows, cols = (side and lengths for side in (CASES[name].rows, CASES[name].cols))
    case = replace(CASES[name], rows=rows, cols=cols, dense_cols=(11, keys))
    tensors = [t.detach() for t in case.tensors(torch.float32)]
    cotangent = torch.randn_like(case.call(tensors))
    before = both(case, tensors, cotangent)[:4]
    order = torch.randperm(case.batch).tolist()
    moved = replace(
        case,
        rows=case.rows and tuple(lengths[b] for b in order),
        cols=case.cols and tuple(lengths[b] for b in order),
    )
    pairs = zip(tensors, sides_of(case), strict=True)
    given = [take(case, t, side, order, dim) for t, (side, dim) in pairs]
    after = both(moved, given, take(case, cotangent, "q", order))[:4]
    for got, want, side in zip(after, before, "qqkk", strict=True):
        if want.shape[0] > 1:  # a gradient that is summed over the batch has an order of its own
            assert torch.equal(got, take(case, want, side, order))


@pytest.mark.parametrize(
    ("name", "sides"),
    [("PMA with a token operand", {"cols": LONG["cols"]}), (TABLES, LONG)],
)
def test_equal_bits_from_run_to_run(name: str, sides: dict[str, tuple[int, ...]]) -> None:
    case = replace(CASES[name], **sides)
    tensors = case.tensors(torch.float32)
    cotangent = torch.randn_like(case.call(tensors))
    first = both(case, tensors, cotangent)
    for _ in range(20):
        assert all(map(torch.equal, both(case, tensors, cotangent), first))


DISORDER = {
    "decreasing": ((2, 3, 1, 6, 8), (0, 1, 1, 2, 9)),
    "rows of two": ((0, 9, 0, 9, 9), (0, 5, 2, 7, 9)),
    "outside": ((-3, 2, 2, 5, 40), (0, 4, 4, 4, 30)),
    "all empty": ((3, 3, 1, 1, 0), (5, 4, 3, 2, 1)),
}


def rows_of(offsets: tuple[int, ...], longest: int) -> list[range]:
    return [range(a, max(a, min(b, a + longest))) for a, b in itertools.pairwise(offsets)]


def laid_out(values: Tensor, own: list[range]) -> Tensor:
    """The rows of each sequence, one after the other, zeros for those that are not there."""
    padded = torch.cat([values, values.new_zeros(1, *values.shape[1:])])
    inside = range(len(values))
    return padded[[row if row in inside else -1 for rows in own for row in rows]]


def laid_back(values: Tensor, own: list[range], total: int) -> Tensor:
    """The inverse; the last owner of a row counts."""
    found = values.new_zeros(total, *values.shape[1:])
    for number, row in enumerate(row for rows in own for row in rows):
        if 0 <= row < total:
            found[row] = values[number]
    return found


@pytest.mark.parametrize("name", DISORDER)
@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_offsets_in_disorder(name: str, kernel: str) -> None:
    """As the same call on rows that are laid out in order, with their results laid back."""
    forward, backward = {
        "cpu": (forward_op, functools.partial(backward_op, skip=False)),
        "reference": (
            lambda *given: torch.ops.gdpa.attention(*given[:6], "", *given[6:]),
            lambda *given: torch.ops.gdpa.attention_backward(*given[:8], "", *given[8:]),
        ),
    }[kernel]
    program = "a0:f[q]; a1:f[k]; a2:f[h,q_idx,kv_idx]; silu(add(add(mul(s,a0),a1),a2))"
    longest, total = (4, 3), 9
    sides = [rows_of(cu, most) for cu, most in zip(DISORDER[name], longest, strict=True)]
    of_query, of_key = (0, 3), (1, 2, 4)  # which operands have the rows of which side
    owners = dict.fromkeys(of_query, sides[0]) | dict.fromkeys(of_key, sides[1])
    shapes = ((total, 4, 6), (total, 2, 6), (total, 1, 5), (total,), (total,), (4, *longest))
    given = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    cotangent = torch.randn(total, 4, 5, dtype=torch.float64)

    def run(tensors: list[Tensor], cotangent: Tensor, *offsets: Tensor) -> list[Tensor]:
        operands = (*tensors[:3], tensors[3:], [], program)
        out = forward(*operands, *offsets, *longest)
        return [out, *backward(cotangent, *operands, [True] * 6, *offsets, *longest)]

    ordered = [laid_out(t, owners[i]) if i in owners else t for i, t in enumerate(given)]
    cu = [torch.tensor([0, *map(len, own)]).cumsum(0) for own in sides]
    out, *grads = run(ordered, laid_out(cotangent, sides[0]), *cu)
    expected = [laid_back(out, sides[0], total)] + [
        laid_back(grad, owners[i], total) if i in owners else grad for i, grad in enumerate(grads)
    ]
    found = run(given, cotangent, *map(torch.tensor, DISORDER[name]))
    for got, want in zip(found, expected, strict=True):
        assert got.is_contiguous()
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
