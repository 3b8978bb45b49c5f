"""Where a region may stand: checkpoint bodies, autocast, modules, inference."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests._judge import compare, results
from tests._recorder import Recorder, recorded
from tests.operands import make_operands, recast
from tests.patterns.rows import HEADS, SIZES, fused, is_fused, judge


def attention(q, k, v):
    return F.silu(q @ k.mT / 2) @ v


SQUARE = {"q": "b h n d", "k": "b h n d", "v": "b h n e"}

# Activation checkpointing: the body is a GraphModule of its own.


def test_checkpoint():
    recorder = fused(lambda q, k, v: checkpoint(attention, q, k, v, use_reentrant=False) * 2.0)
    assert "attention" in recorder.graphs[0].after


@is_fused({**HEADS, "w": "e e"})
def test_checkpoint_with_more_around_it(q, k, v, w):
    def block(q, k, v):
        return F.layer_norm(attention(q.tanh(), k, v) @ w, (6,))

    return checkpoint(block, q, k, v, use_reentrant=False).sum(1)


@is_fused({**HEADS, "q2": "b h n d"}, regions=2)
def test_two_checkpoints_of_one_block(q, k, v, q2):
    first = checkpoint(attention, q, k, v, use_reentrant=False)
    return first + checkpoint(attention, q2, k, v, use_reentrant=False)


def test_checkpoint_inside_a_checkpoint():
    def outer(q, k, v):
        return checkpoint(attention, q.sin(), k, v, use_reentrant=False).cos()

    fused(lambda q, k, v: checkpoint(outer, q, k, v, use_reentrant=False))


def test_a_fused_result_is_handed_to_a_checkpoint():
    """Both graphs name their fused calls alike; what one stands for is said of its own graph."""

    def layer(q, k, v, bias):
        return F.silu(q @ k.mT + bias * 2) @ v

    def model(q, k, v, k2, bias):
        first = layer(q, k, v, bias)
        return checkpoint(layer, q, k2, first, bias.mT, use_reentrant=False)

    specs = {**SQUARE, "k2": "b h n d", "bias": "n n"}
    recorder = fused(model, specs, regions=2)
    assert len({match.node for match in recorder.matches}) == 1
    assert {match.body for match in recorder.matches} == {"", "wrap_body_0"}


@pytest.mark.parametrize("which", ["none", "second", "all"])
def test_three_layers_some_of_them_checkpointed(which: str):
    def stays(number: int) -> bool:
        return which == "all" or (which == "second" and number == 1)

    def model(q, k, v):
        for number in range(3):
            if stays(number):
                v = checkpoint(attention, q, k, v, use_reentrant=False)
            else:
                v = attention(q, k, v)
        return v

    fused(model, SQUARE, regions=3)
    around = lambda q, k, v: checkpoint(model, q, k, v, use_reentrant=False)
    matches = fused(around, SQUARE, regions=3).matches
    depths = sorted(len(match.body.split(".")) for match in matches)
    assert depths == {"none": [1, 1, 1], "second": [1, 1, 2], "all": [2, 2, 2]}[which]


def test_softmax_in_a_checkpoint_is_left():
    def block(q, k, v):
        return (q @ k.mT).softmax(-1) @ v

    recorder = judge(lambda q, k, v: checkpoint(block, q, k, v, use_reentrant=False))
    assert recorder.untouched and not recorder.matches


def test_product_outside_and_product_inside_a_checkpoint():
    """A region does not reach over the border of a body."""

    def block(s, v):
        return F.silu(s) @ v

    def model(q, k, v):
        return checkpoint(block, q @ k.mT, v, use_reentrant=False)

    recorder = judge(model)
    assert recorder.untouched and not recorder.matches


# Autocast. fp64 is not touched by it, so the exact formula is the same function on fp64 operands.


def lower() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def autocast_inside(q, k, v):
    with lower():
        return attention(q, k, v)


def autocast_around_more(q, k, v):
    q = q * 2.0
    with lower():
        out = attention(q, k.sin(), v) + 1.0
    return out.float() * 3.0


def autocast_of_the_first_product(q, k, v):
    with lower():
        s = q @ k.mT
    return F.silu(s.to(q.dtype)) @ v


def autocast_of_the_second_product(q, k, v):
    p = F.silu(q @ k.mT)
    with lower():
        return p @ v


def autocast_disabled_within(q, k, v):
    with lower():
        q = q @ q.new_ones(4, 4)
        with torch.autocast("cpu", enabled=False):
            return attention(q.to(k.dtype), k, v)


def autocast_with_einsum(q, k, v):
    with lower():
        p = F.gelu(torch.einsum("bhnd,bhmd->bhnm", q, k), approximate="tanh") / 5
        return torch.einsum("bhnm,bhme->bhne", p, v)


def autocast_with_explicit_float(q, k, v):
    with lower():
        return F.silu((q @ k.mT).to(q.dtype)) @ v


AUTOCAST = [
    autocast_inside,
    autocast_around_more,
    autocast_disabled_within,
    autocast_with_einsum,
    autocast_with_explicit_float,
]
PARTLY = [autocast_of_the_first_product, autocast_of_the_second_product]


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("function", AUTOCAST, ids=lambda f: f.__name__)
def test_autocast(function, training):
    fused(function, training=training, dtype=torch.float32)


@pytest.mark.parametrize("function", PARTLY, ids=lambda f: f.__name__)
def test_autocast_of_one_product(function):
    judge(function, dtype=torch.float32)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_autocast_outside_of_the_compiled_function(training):
    recorder = Recorder()
    compiled = torch.compile(attention, backend=recorder, fullgraph=True)
    operands = make_operands(HEADS, SIZES, dtype=torch.float32)

    def outside(function):
        def model(**operands):
            with lower():
                return function(**operands)

        return model

    assert not compare(outside(attention), outside(compiled), operands, training=training)
    assert len(recorder.matches) == 1, recorder.why()


@is_fused({**HEADS, "bias": "h n m"}, dtype=torch.float32)
def test_autocast_with_single_precision_bias(q, k, v, bias):
    with lower():
        return F.silu(q @ k.mT + bias) @ v


def test_autocast_result_has_eagers_dtype():
    recorder = Recorder()
    operands = make_operands(HEADS, SIZES, dtype=torch.float32)
    got = torch.compile(autocast_inside, backend=recorder, fullgraph=True)(**operands)
    assert len(recorder.matches) == 1
    assert got.dtype == autocast_inside(**operands).dtype == torch.bfloat16


# Modules, inference mode, requires_grad of some operands only.


class Block(torch.nn.Module):
    """Attention with a learned bias and temperature, layer norm and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(8, 24, dtype=torch.float64)
        self.out = torch.nn.Linear(8, 8, dtype=torch.float64)
        self.norm = torch.nn.LayerNorm(8, dtype=torch.float64)
        self.bias = torch.nn.Parameter(torch.randn(2, 5, 5, dtype=torch.float64))
        self.scale = torch.nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.register_buffer("mask", torch.ones(5, 5, dtype=torch.bool).tril())
        self.act = torch.nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, 2, 4).permute(2, 0, 3, 1, 4)
        p = self.act(q @ k.mT * self.scale + self.bias).masked_fill(~self.mask, 0.0)
        return x + self.out((p @ v).transpose(1, 2).reshape(b, n, 8))


@pytest.mark.parametrize("layers", [1, 3])
def test_module_trains_as_in_eager(layers):
    model = torch.nn.Sequential(*[Block() for _ in range(layers)])
    recorder = Recorder()
    compiled = torch.compile(model, backend=recorder, fullgraph=True)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    gradients = []
    for module in (model, compiled):
        model.zero_grad()
        module(x).square().sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert len(recorder.matches) == layers, recorder.why()
    for name, grad in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], grad, rtol=1e-10, atol=1e-10)


def test_inference_mode():
    with torch.inference_mode():
        assert len(recorded(attention, *make_operands(HEADS, SIZES).values()).matches) == 1


def test_einsum_in_inference_mode_is_cast():
    """Dispatch modes see einsum whole there, with autocast off; eager casts its products."""

    def attention(q, k, v):
        with torch.inference_mode():
            weights = F.silu(q @ k.mT)
            with torch.autocast("cpu", torch.bfloat16):
                return torch.einsum("...nm,...md->...nd", weights, v)

    recorder = Recorder()
    operands = recast(make_operands(HEADS, SIZES), torch.float32)
    output = torch.compile(attention, backend=recorder, fullgraph=True)(**operands)
    assert output.dtype == attention(**operands).dtype == torch.bfloat16
    assert len(recorder.matches) == 1, recorder.why()


@pytest.mark.parametrize("wanted", ["q", "k", "v", "bias", "scale"])
def test_one_gradient_only(wanted):
    """Only what autograd asks for is computed."""
    specs = {**HEADS, "bias": "h n m", "scale": ""}

    def model(q, k, v, bias, scale):
        return F.silu(scale * (q @ k.mT) + bias) @ v

    operands = make_operands(specs, SIZES)
    for name, operand in operands.items():
        operand.requires_grad_(name == wanted)
    recorder = Recorder()
    compiled = torch.compile(model, backend=recorder, fullgraph=True)
    assert not compare(model, compiled, operands)
    assert len(recorder.matches) == 1
    needs: list[list[bool]] = []
    output = compiled(**operands).sum()
    with _Spy(needs):
        output.backward()
    assert [sum(each) for each in needs] == [1]


class _Spy(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the `needs` of every call of the backward op."""

    def __init__(self, needs: list) -> None:
        super().__init__()
        self.needs = needs

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.gdpa.attention_backward.default:
            self.needs.append(
                next(x for x in args if isinstance(x, list) and x and isinstance(x[0], bool))
            )
        return function(*args, **(kwargs or {}))


def test_nothing_is_kept_but_the_operands():
    """The forward saves q, k, v and the bias: no tensor of N times M elements of its own making."""
    specs = {**HEADS, "bias": "n m"}

    def model(q, k, v, bias):
        return F.silu(q @ k.mT + bias) @ v

    saved: list[torch.Tensor] = []
    compiled = torch.compile(model, backend=Recorder(), fullgraph=True)
    operands = make_operands(specs, {**SIZES, "n": 40, "m": 50})
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        compiled(**operands)
    assert saved
    assert (
        max(tensor.numel() for tensor in saved) == 40 * 50
    )  # the bias; the scores have six times that


def test_judges_see_a_wrong_result():
    """The judge itself: a scale that is off by a thousandth is seen, forward and backward."""
    operands = make_operands(HEADS, SIZES)
    near = lambda q, k, v: attention(q * 1.001, k, v)
    assert "output" in compare(attention, near, operands)
    hooked = lambda q, k, v: attention(_Scaled.apply(q), k, v)
    assert "gradient of q" in compare(attention, hooked, operands)
    assert results(attention, operands).gradients


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 1.001
