"""The judge on wrong numbers: other programs, masks, operands and gradients, and what rounds."""

import math
import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.judge.programs import PROGRAMS
from tests.judge.rewritten import (
    D,
    H,
    M,
    N,
    call_of,
    called,
    heads,
    on_operand,
    plain,
    program,
    stopped,
    verdicts,
    with_argument,
)

SCALAR_OUTPUTS = torch._dynamo.config.patch(capture_scalar_outputs=True)


def masked(q, k, v, lens, bias):
    mask = torch.arange(M) < lens[:, None, None, None]
    return torch.where(mask, F.relu(q @ k.mT + bias), 0.0) @ v


def masked_inputs() -> list[torch.Tensor]:
    return [*heads(), torch.tensor([2, 5]), torch.randn(N, M, requires_grad=True)]


def counted(q, k, v):
    """Its numbers are written into the graph."""
    rows, columns = torch.tensor(range(N)), torch.tensor([3 * i for i in range(M)])
    return torch.where(rows[:, None] >= columns, F.relu(q @ k.mT), 0.0) @ v


def idle(q, k, v):
    """In evaluation its slope is the mean."""
    return F.rrelu(q @ k.mT, 0.1, 0.3) @ v


def some_heads_constant(q, k, v):
    """There no product is read: which rows would be multiplied says nothing, the weights do."""
    s = q @ k.mT
    return torch.cat([s[:, :1].relu(), torch.ones_like(s[:, 1:])], 1) @ v


def counted_by(condition: str) -> Callable:
    return program(f"a0:i[kv_idx]; where({condition},relu(s),mul(0.0,float(a0)))")


def masked_by(condition: str, weight: str) -> Callable:
    return program(f"a0:i[b]; a1:f[q_idx,kv_idx]; where({condition},{weight},0.0)")


def flipped(position: int, dim: int) -> Callable:
    return with_argument(position, on_operand(torch.ops.aten.flip.default, [dim]))


SCALED = with_argument(0, on_operand(torch.ops.aten.mul.Tensor, 2.0))
COPIED = with_argument(0, on_operand(torch.ops.aten._to_copy.default))
RIGHT = [
    (plain, "query copied", COPIED),
    (counted, "by an operand", counted_by("ge(q_idx,a0)")),
    (counted, "by a formula", counted_by("ge(q_idx,mul(kv_idx,3))")),
    (idle, "the mean slope", program("leaky_relu(s,0.2)")),
]
WRONG = [
    (plain, "another scale", program("silu(mul(s,0.25))")),
    (plain, "another activation", program("relu(mul(s,0.5))")),
    (plain, "a gradient cut", program("silu(detach(mul(s,0.5)))")),
    (plain, "a mask that is not there", program("where(le(kv_idx,q_idx),silu(mul(s,0.5)),0.0)")),
    (plain, "a mask of one place",
     program("where(and(eq(q_idx,0),eq(kv_idx,0)),0.0,silu(mul(s,0.5)))")),
    (plain, "rounding", program("silu(bf16(mul(s,0.5)))")),
    (plain, "zero for NaN", program("where(isnan(s),0.0,silu(mul(s,0.5)))")),
    (plain, "query and key swapped rows", flipped(0, 2)),
    (plain, "key of other heads", flipped(1, 1)),
    (plain, "value of another sample", flipped(2, 0)),
    (plain, "query scaled", SCALED),
    (masked, "less or equal", masked_by("le(kv_idx,a0)", "relu(add(s,a1))")),
    (masked, "rows for keys", masked_by("lt(q_idx,a0)", "relu(add(s,a1))")),
    (masked, "no bias", masked_by("lt(kv_idx,a0)", "relu(s)")),
    (masked, "a bias without a gradient", masked_by("lt(kv_idx,a0)", "relu(add(s,detach(a1)))")),
    (masked, "a bias without a gradient in one head",
     masked_by("lt(kv_idx,a0)", "relu(add(s,where(eq(h,1),detach(a1),a1)))")),
    (counted, "by another operand", counted_by("gt(q_idx,a0)")),
    (counted, "by another formula", counted_by("ge(q_idx,mul(kv_idx,2))")),
    (idle, "the lower slope", program("leaky_relu(s,0.1)")),
    (idle, "the upper slope", program("leaky_relu(s,0.3)")),
    (some_heads_constant, "a head more", program("where(lt(h,2),relu(s),1.0)")),
    (some_heads_constant, "constant by score",
     program("where(lt(h,1),relu(s),where(ge(s,0.5),2.0,1.0))")),
    (some_heads_constant, "key of other heads", flipped(1, 1)),
]  # fmt: skip
ROWS = ("function", "name", "tamper")


def inputs_of(function: Callable) -> list[torch.Tensor]:
    return masked_inputs() if function is masked else heads()


@pytest.mark.parametrize("function", [plain, masked, some_heads_constant])
def test_right_rewrites_pass(function: Callable):
    assert verdicts(function, inputs_of(function)) == [None]


def test_right_rewrites_without_gradients_pass():
    assert verdicts(plain, heads(grad=False)) == [None]


@pytest.mark.parametrize(ROWS, RIGHT)
def test_other_right_rewrites_pass(function: Callable, name: str, tamper: Callable):
    assert verdicts(function, inputs_of(function), tamper) == [None]


@pytest.mark.parametrize(ROWS, WRONG)
def test_wrong_rewrites_are_invalid(function: Callable, name: str, tamper: Callable):
    (verdict,) = verdicts(function, inputs_of(function), tamper)
    assert verdict is not None and verdict.invalid, verdict


def test_a_whole_number_from_a_tensor_is_one_as_a_real_number_too():
    def attention(q, k, v, count):
        return F.silu(q @ k.mT * float(count)) @ v

    with SCALAR_OUTPUTS:
        assert verdicts(attention, [*heads(), torch.tensor(3)]) == [None]


@pytest.mark.parametrize("grad", [True, False])
def test_numbers_that_a_rounding_moves_anywhere_say_nothing(grad: bool):
    def attention(q, k, v):
        half = torch.rand(N, M)
        scores = torch.lerp(q @ k.mT, q @ k.mT * 1e20, half)  # which the program has in other words
        return torch.sin(scores).clamp(0.0, 0.3) @ v

    assert verdicts(attention, heads(grad=grad)) == [None]


@pytest.mark.parametrize("name", ["places_compared_in_16_bits", "places_cast_to_16_bits"])
def test_places_in_16_bits_round(name: str):
    """They meet the ends of the mask in 16 bits, where an odd place is an even one."""
    function, make, _ = PROGRAMS[name]
    exact = program("a0:f[kv_idx]; where(ge(float(q_idx),a0),silu(s),0.0)")
    stopped(function, list(make()), exact)


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

    at_the_length = program(
        "a0:f[b]; where(or(lt(float(kv_idx),a0),and(ge(kv_idx,1),eq(float(kv_idx),a0))),s,0.0)"
    )
    stopped(attention, [*heads(), torch.tensor([2.0, 5.0])], at_the_length)


@pytest.mark.parametrize("options", [{"padding_idx": 0}, {"scale_grad_by_freq": True}])
def test_the_gradient_of_an_embedding(options):
    """Padding has none, and that of a frequent place is scaled: another index changes both."""

    def attention(q, k, v, index, table):
        bias = F.embedding(index, table, **options).permute(2, 0, 1)
        return F.silu(q @ k.mT + bias) @ v

    def tamper(graph: torch.fx.Graph) -> None:
        """Look up in two copies of the table, even places in the second one."""
        node = call_of(graph, F.embedding)
        index, table = node.args[:2]
        twice = called(graph, node, torch.cat, [table, table])
        odd = called(graph, node, torch.ops.aten.bitwise_and.Scalar, index, 1)
        moved = called(graph, node, torch.sub, index, called(graph, node, torch.mul, odd, 4))
        node.args = (called(graph, node, torch.add, moved, 4), twice, *node.args[2:])

    table = torch.randn(4, H, requires_grad=True)
    inputs = [*heads(), torch.randint(0, 4, (N, M)), table]
    stopped(attention, inputs, tamper, reason="another gradient")


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

    stopped(attention, heads(), program("silu(add(s,1.0))"), reason="other weights")


def test_sums_that_torch_may_fuse_say_nothing_where_a_product_overflows():
    def attention(q, k, v, a, b):
        return torch.addcmul(q @ k.mT, a, b).clamp(min=0.0) @ v

    inputs = [x.double() for x in heads(grad=False)]
    inputs += [torch.randn(N, 1, dtype=torch.float64), torch.randn(M, dtype=torch.float64)]
    assert verdicts(attention, inputs) == [None]


@pytest.mark.parametrize("of_sums", [torch.sqrt, lambda x: x.clamp(min=0.0)])
def test_a_divisor_of_zero_keeps_its_sign(of_sums: Callable):
    """Row sums are drawn, also as -0. In fp64 both sides are held to one infinity."""

    def attention(q, k, v):
        weights = F.silu(q @ k.mT)
        return weights / of_sums(weights.abs().sum(-1, keepdim=True)) @ v

    inputs = [x.double().requires_grad_() for x in heads(grad=False)]
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
    with SCALAR_OUTPUTS:
        inputs = [*heads(), torch.randn(N, M), torch.tensor(0.25)]
        stopped(function, inputs, program(NUMBERS[function]))


def test_a_number_that_sizes_are_specialised_to_is_read_as_that_number():
    def attention(q, k, v, count):
        return F.silu(q[None].expand(count.item(), -1, -1, -1, -1) @ k.mT) @ v

    with SCALAR_OUTPUTS:
        assert verdicts(attention, [*heads(), torch.tensor(1)]) == [None]


def test_an_addend_times_zero_is_not_read():
    """NaN in it changes no score; its own gradient is made of zeros, which meet NaN behind it."""

    def attention(q, k, v, bias):
        scores = torch.baddbmm(bias * float("nan"), q, k.mT, beta=0)
        return torch.bmm(F.silu(scores), v)

    inputs = [torch.randn(2, n, D, requires_grad=True) for n in (N, M, M)]
    inputs.append(torch.randn(1, 1, M, requires_grad=True))
    stopped(attention, inputs, program("a0:f[-,-,kv_idx]; silu(add(s,a0))"))


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
    stopped(attention, inputs, program(text), reason="another gradient")


@pytest.mark.parametrize("fill", [torch.Tensor.masked_fill, torch.Tensor.masked_fill_])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mask_filled_by_a_tensor_without_dims(fill: Callable, dtype: torch.dtype):
    def attention(q, k, v, mask, x):
        return fill(F.silu(q @ k.mT), mask, x) @ v

    value = torch.tensor(0.1, dtype=dtype, requires_grad=True)
    text = "a0:b[q_idx,kv_idx]; a1:f[]; where(a0,{},silu(s))"
    tampers = [program(text.format(wrong)) for wrong in ("mul(a1,1.5)", "detach(a1)")]
    stopped(attention, [*heads(), torch.rand(N, M) > 0.5, value], *tampers)


@pytest.mark.parametrize(
    ("divide", "name"), [(operator.mod, "mod"), (operator.floordiv, "floordiv")]
)
def test_whole_numbers_divided_by_an_operand(divide: Callable, name: str):
    """Samples where it is zero, which is an error in eager, say nothing."""

    def attention(q, k, v, n):
        apart = torch.arange(N)[:, None] - torch.arange(M)
        return F.silu(q @ k.mT) * (divide(apart, n[:, None, None, None]) == 0) @ v

    text = f"a0:i[b]; mul(silu(s),float(eq({name}(sub(kv_idx,q_idx),add(a0,3)),0)))"
    stopped(attention, [*heads(), torch.tensor([2, 3])], program(text))


def test_a_division_by_zero_that_eager_avoids_is_invalid():
    def attention(q, k, v, n):
        apart = torch.arange(N)[:, None] - torch.arange(M)
        mask = apart % n.clamp(min=1)[:, None, None, None] == 0
        return torch.where(mask, F.silu(q @ k.mT), 0.0) @ v

    def unclamped(graph: torch.fx.Graph) -> None:
        node = call_of(graph, "clamp")
        node.replace_all_uses_with(node.args[0])

    inputs = [*heads(), torch.tensor([2, 3])]
    stopped(attention, inputs, unclamped, reason="divided by zero")


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
