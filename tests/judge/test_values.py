"""The judge on wrong numbers: other programs, masks, operands and gradients, and what rounds."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.judge.rewritten import (
    D,
    H,
    M,
    N,
    called,
    heads,
    on_operand,
    plain,
    program,
    verdicts,
    with_argument,
)


def masked(q, k, v, lens, bias):
    mask = torch.arange(M) < lens[:, None, None, None]
    return torch.where(mask, F.relu(q @ k.mT + bias), 0.0) @ v


def masked_inputs() -> list[torch.Tensor]:
    return [*heads(), torch.tensor([2, 5]), torch.randn(N, M, requires_grad=True)]


def test_right_rewrites_pass():
    assert verdicts(plain, heads()) == [None]
    assert verdicts(plain, heads(grad=False)) == [None]
    assert verdicts(masked, masked_inputs()) == [None]


WRONG_PROGRAMS = {
    "another scale": "silu(mul(s,0.25))",
    "another activation": "relu(mul(s,0.5))",
    "a gradient cut": "silu(detach(mul(s,0.5)))",
    "a mask that is not there": "where(le(kv_idx,q_idx),silu(mul(s,0.5)),0.0)",
    "a mask of one place": "where(and(eq(q_idx,0),eq(kv_idx,0)),0.0,silu(mul(s,0.5)))",
    "rounding": "silu(bf16(mul(s,0.5)))",
    "zero for NaN": "where(isnan(s),0.0,silu(mul(s,0.5)))",
}


@pytest.mark.parametrize("text", WRONG_PROGRAMS.values(), ids=WRONG_PROGRAMS)
def test_wrong_programs_are_invalid(text: str):
    (verdict,) = verdicts(plain, heads(), program(text))
    assert verdict is not None and verdict.invalid, verdict


def counted(q, k, v):
    rows, columns = torch.tensor(range(N)), torch.tensor([3 * i for i in range(M)])
    return torch.where(rows[:, None] >= columns, F.relu(q @ k.mT), 0.0) @ v


@pytest.mark.parametrize(
    ("condition", "right"),
    [
        ("ge(q_idx,a0)", True),
        ("ge(q_idx,mul(kv_idx,3))", True),
        ("gt(q_idx,a0)", False),
        ("ge(q_idx,mul(kv_idx,2))", False),
    ],
)
def test_what_the_graph_spells_is_known(condition: str, right: bool):
    """Numbers that are written into the graph, such as `torch.tensor(range(n))`."""
    (verdict,) = verdicts(
        counted, heads(), program(f"a0:i[kv_idx]; where({condition},relu(s),mul(0.0,float(a0)))")
    )
    assert (verdict is None) is right, verdict


WRONG_MASKS = {
    "less or equal": "a0:i[b]; a1:f[q_idx,kv_idx]; where(le(kv_idx,a0),relu(add(s,a1)),0.0)",
    "rows for keys": "a0:i[b]; a1:f[q_idx,kv_idx]; where(lt(q_idx,a0),relu(add(s,a1)),0.0)",
    "no bias": "a0:i[b]; a1:f[q_idx,kv_idx]; where(lt(kv_idx,a0),relu(s),0.0)",
    "a bias without a gradient in one head": (
        "a0:i[b]; a1:f[q_idx,kv_idx]; "
        "where(lt(kv_idx,a0),relu(add(s,where(eq(h,1),detach(a1),a1))),0.0)"
    ),
    "a bias without a gradient": (
        "a0:i[b]; a1:f[q_idx,kv_idx]; where(lt(kv_idx,a0),relu(add(s,detach(a1))),0.0)"
    ),
}


def idle(q, k, v):
    return F.rrelu(q @ k.mT, 0.1, 0.3) @ v


@pytest.mark.parametrize(("slope", "right"), [(0.2, True), (0.1, False), (0.3, False)])
def test_rrelu_in_evaluation_has_the_mean_slope(slope: float, right: bool):
    (verdict,) = verdicts(idle, heads(), program(f"leaky_relu(s,{slope})"))
    assert (verdict is None) if right else (verdict is not None and verdict.invalid), verdict


@pytest.mark.parametrize("text", WRONG_MASKS.values(), ids=WRONG_MASKS)
def test_wrong_masks_are_invalid(text: str):
    (verdict,) = verdicts(masked, masked_inputs(), program(text))
    assert verdict is not None and verdict.invalid, verdict


WRONG_OPERANDS = {
    "query and key swapped rows": (0, on_operand(torch.ops.aten.flip.default, [2])),
    "key of other heads": (1, on_operand(torch.ops.aten.flip.default, [1])),
    "value of another sample": (2, on_operand(torch.ops.aten.flip.default, [0])),
    "query scaled": (0, on_operand(torch.ops.aten.mul.Tensor, 2.0)),
    "query rounded": (0, on_operand(torch.ops.aten._to_copy.default)),
}


@pytest.mark.parametrize(("position", "change"), WRONG_OPERANDS.values(), ids=WRONG_OPERANDS)
def test_wrong_operands_are_invalid(position: int, change: Callable):
    harmless = change.__closure__[1].cell_contents is torch.ops.aten._to_copy.default
    (verdict,) = verdicts(plain, heads(), with_argument(position, change))
    assert (verdict is None) if harmless else (verdict is not None and verdict.invalid), verdict


def test_a_whole_number_from_a_tensor_is_one_as_a_real_number_too():
    def attention(q, k, v, count):
        return F.silu(q @ k.mT * float(count)) @ v

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        assert verdicts(attention, [*heads(), torch.tensor(3)]) == [None]


@pytest.mark.parametrize("grad", [True, False])
def test_numbers_that_a_rounding_moves_anywhere_say_nothing(grad: bool):
    def attention(q, k, v):
        half = torch.rand(N, M)
        scores = torch.lerp(q @ k.mT, q @ k.mT * 1e20, half)  # which the program has in other words
        return torch.sin(scores).clamp(0.0, 0.3) @ v

    assert verdicts(attention, heads(grad=grad)) == [None]


LONG = 600  # past 256, where bfloat16 has no odd numbers


def compared(q, k, v, ends):
    return torch.where(torch.arange(LONG)[:, None] >= ends, F.silu(q @ k.mT), 0.0) @ v


def cast(q, k, v, ends):
    return torch.where(torch.arange(LONG).bfloat16()[:, None] >= ends, F.silu(q @ k.mT), 0.0) @ v


@pytest.mark.parametrize("function", [compared, cast])
def test_places_in_16_bits_round(function):
    """They meet the ends of the mask in 16 bits, where an odd place is an even one."""
    inputs = [torch.randn(1, 1, LONG, D, requires_grad=True) for _ in range(3)]
    inputs.append(torch.arange(LONG).bfloat16())
    assert verdicts(function, inputs) == [None]
    exact = program("a0:f[kv_idx]; where(ge(float(q_idx),a0),silu(s),0.0)")
    (verdict,) = verdicts(function, inputs, exact)
    assert verdict is not None and verdict.invalid


def test_overwritten_weights_have_no_gradient():
    """Not even one of 0 times infinity, which eager gives where a score is infinite."""

    def attention(q, k, v, scale):
        weights = (q @ k.mT * scale).abs()
        weights.unsqueeze(0).fill_(0.5)
        near = (torch.arange(N)[:, None] - torch.arange(M)).abs() <= 1
        return torch.where(near, weights, 0.0) @ v

    scale = torch.ones((), requires_grad=True)
    assert verdicts(attention, [*heads(), scale]) == [None]


def test_lengths_may_be_real_numbers():
    """A mask that is another one where a place is the length, but for the first place."""

    def attention(q, k, v, lens):
        return torch.where(torch.arange(M) < lens[:, None, None, None], q @ k.mT, 0.0) @ v

    inputs = [*heads(), torch.tensor([2.0, 5.0])]
    assert verdicts(attention, inputs) == [None]
    tampered = program(
        "a0:f[b]; where(or(lt(float(kv_idx),a0),and(ge(kv_idx,1),eq(float(kv_idx),a0))),s,0.0)"
    )
    (verdict,) = verdicts(attention, inputs, tampered)
    assert verdict is not None and verdict.invalid


@pytest.mark.parametrize("options", [{"padding_idx": 0}, {"scale_grad_by_freq": True}])
def test_the_gradient_of_an_embedding(options):
    """Padding has none, and that of a frequent place is scaled: another index changes both."""

    def attention(q, k, v, index, table):
        bias = F.embedding(index, table, **options).permute(2, 0, 1)
        return F.silu(q @ k.mT + bias) @ v

    def tamper(graph: torch.fx.Graph) -> None:
        """Look up in two copies of the table, even places in the second one."""
        node = next(n for n in graph.nodes if n.target is F.embedding)
        index, table = node.args[:2]
        twice = called(graph, node, torch.cat, [table, table])
        odd = called(graph, node, torch.ops.aten.bitwise_and.Scalar, index, 1)
        moved = called(graph, node, torch.sub, index, called(graph, node, torch.mul, odd, 4))
        node.args = (called(graph, node, torch.add, moved, 4), twice, *node.args[2:])

    table = torch.randn(4, H, requires_grad=True)
    inputs = [*heads(), torch.randint(0, 4, (N, M)), table]
    assert verdicts(attention, inputs) == [None]
    (verdict,) = verdicts(attention, inputs, tamper)
    assert verdict.invalid and "another gradient" in verdict.reason


@pytest.mark.parametrize("explicit", [False, True])
def test_a_cast_of_autocast_is_not_the_models(explicit: bool):
    """Weights past the range of float16 are infinite there, where the model says so."""

    def attention(q, k, v):
        s = q @ k.mT
        with torch.autocast("cpu", torch.float16):
            return (F.relu(s).half() if explicit else F.relu(s)) @ v

    assert verdicts(attention, heads()) == [None]
    (verdict,) = verdicts(attention, heads(), program("relu(s)"))
    assert (verdict is not None) == explicit


def test_scores_that_are_overwritten():
    """The weights are made from no product: the program's must be the same for all scores."""

    def attention(q, k, v):
        scores = q @ k.mT
        scores.zero_()
        return F.silu(scores + 1.0) @ v

    assert verdicts(attention, heads()) == [None]
    (verdict,) = verdicts(attention, heads(), program("silu(add(s,1.0))"))
    assert verdict.invalid and "other weights" in verdict.reason


def test_sums_that_torch_may_fuse_say_nothing_where_a_product_overflows():
    def attention(q, k, v, a, b):
        return torch.addcmul(q @ k.mT, a, b).clamp(min=0.0) @ v

    inputs = [x.double() for x in heads(grad=False)]
    inputs += [torch.randn(N, 1, dtype=torch.float64), torch.randn(M, dtype=torch.float64)]
    assert verdicts(attention, inputs) == [None]


def below(q, k, v, bias, x):
    return F.silu(q @ k.mT).masked_fill(bias < x.item(), 0.0) @ v


def filled(q, k, v, bias, x):
    return F.silu(q @ k.mT).masked_fill(bias < 0, x.item()) @ v


def clamped(q, k, v, bias, x):
    return F.silu(q @ k.mT + bias).clamp(max=x.item()) @ v


NUMBERS = {
    below: "a0:b[q_idx,kv_idx]; where(a0,silu(s),0.0)",
    filled: "a0:b[q_idx,kv_idx]; a1:f[]; where(a0,mul(a1,1.5),silu(s))",
    clamped: "a0:f[q_idx,kv_idx]; a1:f[]; minimum(silu(add(s,a0)),mul(a1,1.5))",
}


@pytest.mark.parametrize("function", NUMBERS)
def test_numbers_that_a_call_takes_as_such(function):
    """`aten.lt.Scalar` and its like take no tensor of numbers, one for each sample."""
    inputs = [*heads(), torch.randn(N, M), torch.tensor(0.25)]
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        assert verdicts(function, inputs) == [None]
        (verdict,) = verdicts(function, inputs, program(NUMBERS[function]))
    assert verdict is not None and verdict.invalid


def test_a_number_that_sizes_are_specialised_to_is_read_as_that_number():
    def attention(q, k, v, count):
        return F.silu(q[None].expand(count.item(), -1, -1, -1, -1) @ k.mT) @ v

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        assert verdicts(attention, [*heads(), torch.tensor(1)]) == [None]


def some_heads_constant(q, k, v):
    s = q @ k.mT
    return torch.cat([s[:, :1].relu(), torch.ones_like(s[:, 1:])], 1) @ v


WRONG_CONSTANT_HEADS = {
    "a head more": program("where(lt(h,2),relu(s),1.0)"),
    "constant by score": program("where(lt(h,1),relu(s),where(ge(s,0.5),2.0,1.0))"),
    "key of other heads": with_argument(1, on_operand(torch.ops.aten.flip.default, [1])),
}


@pytest.mark.parametrize("tamper", WRONG_CONSTANT_HEADS.values(), ids=WRONG_CONSTANT_HEADS)
def test_heads_without_scores(tamper: Callable):
    """There no product is read: which rows would be multiplied says nothing, the weights do."""
    assert verdicts(some_heads_constant, heads()) == [None]
    (verdict,) = verdicts(some_heads_constant, heads(), tamper)
    assert verdict is not None and verdict.invalid


def test_an_addend_times_zero_is_not_read():
    """NaN in it changes no score; its own gradient is made of zeros, which meet NaN behind it."""

    def attention(q, k, v, bias):
        scores = torch.baddbmm(bias * float("nan"), q, k.mT, beta=0)
        return torch.bmm(F.silu(scores), v)

    inputs = [torch.randn(2, n, D, requires_grad=True) for n in (N, M, M)]
    inputs.append(torch.randn(1, 1, M, requires_grad=True))
    assert verdicts(attention, inputs) == [None]
    verdict = verdicts(attention, inputs, program("a0:f[-,-,kv_idx]; silu(add(s,a0))"))[0]
    assert verdict is not None and verdict.invalid


WRONG_GRADIENTS = {
    "one use lost": "a0:f[q_idx,kv_idx]; mul(sigmoid(add(s,a0)),detach(a0))",
    "off by a hundredth": (
        "a0:f[q_idx,kv_idx]; mul(sigmoid(add(s,a0)),add(detach(mul(a0,0.01)),mul(a0,0.99)))"
    ),
}


@pytest.mark.parametrize("text", WRONG_GRADIENTS.values(), ids=WRONG_GRADIENTS)
def test_the_gradient_of_a_bias_narrower_than_fp64_scores(text: str):
    """In eager each use of it rounds its gradient to bf16; the program's sum is rounded once."""

    def attention(q, k, v, bias):
        return (torch.sigmoid(q @ k.mT + bias) * bias) @ v

    inputs = [x.detach().double().requires_grad_() for x in heads()]
    inputs.append(torch.randn(N, M, dtype=torch.bfloat16, requires_grad=True))
    assert verdicts(attention, inputs) == [None]
    (verdict,) = verdicts(attention, inputs, program(text))
    assert verdict.invalid and "another gradient" in verdict.reason


@pytest.mark.parametrize("fill", [torch.Tensor.masked_fill, torch.Tensor.masked_fill_])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mask_filled_by_a_tensor_without_dims(fill: Callable, dtype: torch.dtype):
    def attention(q, k, v, mask, x):
        return fill(F.silu(q @ k.mT), mask, x) @ v

    value = torch.tensor(0.1, dtype=dtype, requires_grad=True)
    inputs = [*heads(), torch.rand(N, M) > 0.5, value]
    assert verdicts(attention, inputs) == [None]
    for wrong in ("mul(a1,1.5)", "detach(a1)"):
        text = f"a0:b[q_idx,kv_idx]; a1:f[]; where(a0,{wrong},silu(s))"
        (verdict,) = verdicts(attention, inputs, program(text))
        assert verdict is not None and verdict.invalid


def remaining(places, periods):
    return places % periods


def divided(places, periods):
    return places // periods


@pytest.mark.parametrize("divide", [remaining, divided])
def test_whole_numbers_divided_by_an_operand(divide: Callable):
    """Samples where it is zero, which is an error in eager, say nothing."""

    def attention(q, k, v, n):
        apart = torch.arange(N)[:, None] - torch.arange(M)
        return F.silu(q @ k.mT) * (divide(apart, n[:, None, None, None]) == 0) @ v

    inputs = [*heads(), torch.tensor([2, 3])]
    assert verdicts(attention, inputs) == [None]
    name = "mod" if divide is remaining else "floordiv"
    text = f"a0:i[b]; mul(silu(s),float(eq({name}(sub(kv_idx,q_idx),add(a0,3)),0)))"
    (verdict,) = verdicts(attention, inputs, program(text))
    assert verdict is not None and verdict.invalid


def test_a_division_by_zero_that_eager_avoids_is_invalid():
    def attention(q, k, v, n):
        apart = torch.arange(N)[:, None] - torch.arange(M)
        mask = apart % n.clamp(min=1)[:, None, None, None] == 0
        return torch.where(mask, F.silu(q @ k.mT), 0.0) @ v

    def unclamped(graph: torch.fx.Graph) -> None:
        node = next(n for n in graph.nodes if n.target == "clamp")
        node.replace_all_uses_with(node.args[0])

    inputs = [*heads(), torch.tensor([2, 3])]
    assert verdicts(attention, inputs) == [None]
    (verdict,) = verdicts(attention, inputs, unclamped)
    assert verdict.invalid and "divided by zero" in verdict.reason


def test_gelu_by_hand_of_scores_that_overflow():
    """Seed 701255 of the fuzzer, invalid where oneDNN's `F.gelu` has NaN at infinity."""

    def attention(q, k, v, keep):
        x = F.relu(k @ q.mT).pow(2)
        w = 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))
        w *= keep
        return v.mT @ w

    def bf16(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)

    inputs = [bf16(6, N, D), bf16(6, M, D), bf16(6, M, D), torch.rand(6, M, N) < 0.5]
    assert verdicts(attention, inputs) == [None]


def test_a_flat_slope_times_large_operands_is_rounding():
    """At -7.2 torch's vectors have a slope of 0, and its single elements one of 5e-15. The fuzzer's
    seed 901728 met it beside operands of 1.7e7."""

    def scaled(q, k, v, a, b):
        return (a * F.gelu(q @ k.mT + 0, approximate="tanh") * b) @ v

    leaves = [x.detach().double().requires_grad_() for x in heads()]
    factors = [torch.randn(N, n, dtype=torch.float64) for n in (1, M)]
    assert verdicts(scaled, [*leaves, *factors]) == [None]
