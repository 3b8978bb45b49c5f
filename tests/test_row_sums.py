"""Row sums of the weights as a second output: the op, its gradients, and the loops over blocks."""

import pytest
import torch
from torch import Tensor

import gdpa_inductor.lowerings  # noqa: F401  (it defines the ops of single backends)
from gdpa_inductor.program.score_mod import ScoreMod, ScoreModError

from .test_ops import OPCHECKS
from .tolerances import error_of

CU = torch.tensor([0, 3, 3, 20, 50, 90])  # of few rows, of none, and of many
DENSE = ((2, 4, 5, 6), (2, 2, 7, 6), (2, 1, 7, 3))
ROWS = ((90, 2, 8),) * 3
ABSOLUTE = "t0=where(ge(q_idx,kv_idx),tanh(s),0.0); r=abs(t0); t0"
BIASED = "a0:f[h,-,kv_idx]; t0=tanh(add(s,a0)); r=mul(t0,t0); t0"
DETACHED = "t0=silu(s); r=detach(abs(t0)); t0"
SIGMOID = "t0=sigmoid(s); r=t0; t0"
PROGRAMS = {"absolute": ABSOLUTE, "biased": BIASED, "detached": DETACHED, "plain": SIGMOID}
JAGGED = {
    "jagged": (ROWS, (CU, CU, 40, 40)),
    "jagged queries": ((ROWS[0], (5, 2, 16, 8), (5, 2, 16, 8)), (CU, None, 40, 0)),
    "jagged keys": (((5, 2, 16, 8), *ROWS[1:]), (None, CU, 0, 40)),
}


def operands(shapes: tuple, program: str, dtype: torch.dtype = torch.float64) -> list:
    generator = torch.Generator().manual_seed(0)
    draw = lambda *size: torch.randn(size, dtype=dtype, generator=generator).requires_grad_()
    aux = [draw(shapes[0][1], 1, shapes[1][2])] if program is BIASED else []
    return [*(draw(*shape) for shape in shapes), aux, [], program]


def by_hand(query: Tensor, key: Tensor, program: str, aux: list[Tensor]) -> Tensor:
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query @ key.mT
    if program is ABSOLUTE:
        return scores.tanh().tril().abs().sum(-1)
    if program is BIASED:
        return (scores + aux[0]).tanh().square().sum(-1)
    if program is DETACHED:
        return torch.nn.functional.silu(scores).abs().sum(-1)
    return scores.sigmoid().sum(-1)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_sums_are_those_of_the_formula_and_the_output_is_as_without(program: str) -> None:
    query, key, value, aux, *rest = operands(DENSE, program)
    out, sums = torch.ops.gdpa.attention_sums(query, key, value, aux, *rest, "")
    torch.testing.assert_close(sums, by_hand(query, key, program, aux))
    text = str(ScoreMod(ScoreMod.parse(program).weight, ScoreMod.parse(program).aux))
    assert torch.equal(out, torch.ops.gdpa.attention(query, key, value, aux, [], text, ""))


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize(
    "wanted", [slice(0, 1), slice(1, 2), slice(0, 2)], ids=["O", "sums", "both"]
)
def test_gradients_of_either_output_and_of_both(program: str, wanted: slice) -> None:
    if program is DETACHED and wanted == slice(1, 2):
        pytest.skip("such sums have no gradient")
    *tensors, aux, scalars, text = operands(DENSE, program)

    def call(q: Tensor, k: Tensor, v: Tensor, *aux: Tensor) -> tuple[Tensor, ...]:
        return torch.ops.gdpa.attention_sums(q, k, v, list(aux), scalars, text, "")[wanted]

    if program is DETACHED:  # numerical derivatives do not see a detach
        mine = torch.autograd.grad(call(*tensors, *aux)[0].sum(), tensors)
        own = torch.ops.gdpa.attention(*tensors, [], [], "silu(s)", "")
        assert all(map(torch.equal, mine, torch.autograd.grad(own.sum(), tensors)))
        return
    assert torch.autograd.gradcheck(call, (*tensors, *aux))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_sums_are_in_fp32_or_fp64(dtype: torch.dtype) -> None:
    given = operands(DENSE, SIGMOID, dtype)
    out, sums = torch.ops.gdpa.attention_sums(*given, "")
    assert out.dtype == dtype
    assert sums.dtype == (dtype if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("name", JAGGED)
def test_jagged_sums_are_those_of_each_sequence(name: str) -> None:
    shapes, lengths = JAGGED[name]
    given = operands(shapes, ABSOLUTE)
    _, sums = torch.ops.gdpa.attention_sums(*given, "", *lengths)
    query, key, *_ = given
    for b in range(5):
        rows = slice(int(CU[b]), int(CU[b + 1]))
        part = lambda x, cu: x[b : b + 1] if cu is None else x[rows].transpose(0, 1)[None]
        wanted = by_hand(part(query, lengths[0]), part(key, lengths[1]), ABSOLUTE, [])[0]
        torch.testing.assert_close(sums[b] if lengths[0] is None else sums[rows].T, wanted)


@pytest.mark.parametrize("op", ["attention_cpu_sums", "attention_chunked_sums"])
@pytest.mark.parametrize("name", ["dense", "large", *JAGGED])
@pytest.mark.parametrize("program", [ABSOLUTE, SIGMOID], ids=["absolute", "plain"])
def test_loops_over_blocks_give_the_same(op: str, name: str, program: str) -> None:
    large = ((2, 2, 700, 8), (2, 1, 900, 8), (1, 1, 900, 8))  # of several blocks, some of zeros
    shapes, lengths = JAGGED.get(name, (large if name == "large" else DENSE, ()))
    given = operands(shapes, program)
    wanted = torch.ops.gdpa.attention_sums(*given, "", *lengths)
    with torch.no_grad():
        mine = getattr(torch.ops.gdpa, op)(*given, *lengths)
    torch.testing.assert_close(mine, wanted)
    assert [x.stride() for x in mine] == [x.stride() for x in wanted]


@pytest.mark.parametrize("name", ["dense", *JAGGED])
def test_torch_checks_the_operator(name: str) -> None:
    shapes, lengths = JAGGED.get(name, (DENSE, ()))
    given = (*operands(shapes, SIGMOID), "", *lengths)
    torch.library.opcheck(torch.ops.gdpa.attention_sums.default, given, test_utils=OPCHECKS)


def test_rows_without_a_weight_sum_to_zero() -> None:
    *given, _ = operands(DENSE, SIGMOID)
    program = "t0=where(lt(kv_idx,0),s,0.0); r=t0; t0"
    out, sums = torch.ops.gdpa.attention_sums(*given, program, "")
    assert not out.any() and not sums.any()


def test_a_program_has_one_term_that_is_summed() -> None:
    program = ScoreMod.parse(ABSOLUTE)
    assert ScoreMod.parse(str(program)) == program and len(program.roots) == 2
    with pytest.raises(ScoreModError, match="no name for a statement"):
        ScoreMod.parse("r=s; r=s; s")


@pytest.mark.parametrize("op", ["attention_cpu", "attention_chunked"])
def test_sums_of_long_rows_are_as_exact_as_torchs(op: str) -> None:
    """A loop that adds 16,384 numbers in turn would have twice the error."""
    query, key, value, *rest = operands(((1, 2, 64, 64), *((1, 2, 16384, 64),) * 2), SIGMOID)
    query, key, value = (x.detach().float() for x in (query, key, value))
    sums = getattr(torch.ops.gdpa, f"{op}_sums")(query, key, value, *rest)[1]
    exact = by_hand(query.double(), key.double(), SIGMOID, [])
    assert not error_of(sums, by_hand(query, key, SIGMOID, []), exact, direction="forward")
