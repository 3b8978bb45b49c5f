"""Gradients reach what eager's reach, and the backward has the operands of the forward."""

import pytest
import torch
import torch.nn.functional as F

import gdpa_inductor
from tests._recorder import ALWAYS
from tests.patterns.effects import (
    LENGTHS,
    B,
    D,
    H,
    M,
    N,
    drawn,
    frozen,
    fused,
    heads,
    is_exact,
    is_fused,
    is_refused,
    judged,
    refused,
)

# Writes that autograd does not see, and tensors that are cut from it

SILENT = {
    "data": lambda s: s.data.masked_fill_(s > 0.3, 0.0),
    "detach": lambda s: s.detach().mul_(0.5),
    "view of data": lambda s: s.data.view(-1).mul_(0.5),
    "data of a view": lambda s: s.mT.data.mul_(0.5),
    "twice": lambda s: s.detach().data.mul_(0.5),
    "setitem": lambda s: s.data.__setitem__(s > 0.3, 0.0),
    "foreach": lambda s: torch._foreach_mul_([s.data], 0.5),
}


@pytest.mark.parametrize("how", SILENT)
def test_scores_changed_behind_autograd(how):
    """Refused, but where no gradient flows."""

    def attention(q, k, v):
        s = q @ k.mT
        SILENT[how](s)
        return F.relu(s * 2.0) @ v

    refused("GRAD_MODE", attention, heads())
    judged(attention, heads(), training=False)
    judged(attention, heads(grad=False))


def test_data_of_the_scores_that_nobody_writes():
    fused(lambda q, k, v: (F.silu(s := q @ k.mT) * (s.data > 0)) @ v, heads())


@is_exact(heads)
def test_detached_alias_that_sees_a_change(q, k, v):
    s = (q @ k.mT) * 2.0
    seen = s.detach()
    s.mul_(0.5)
    return (F.relu(s) + seen) @ v


DETACHED = {
    "scores": lambda q, k, v: F.silu(torch.bmm(q, k.mT).detach_()) @ v,
    "weights": lambda q, k, v: (lambda w: (w.detach_(), w @ v)[1])(F.silu(q @ k.mT)),
    "scaled": lambda q, k, v: ((q @ k.mT) * 2.0).detach_().relu() @ v,
    "output": lambda q, k, v: torch.bmm(F.silu(q @ k.mT), v).detach_() * v.mean(),
}


@pytest.mark.parametrize("what", DETACHED)
def test_detach_in_place(what):
    refused("GRAD_MODE", DETACHED[what], [drawn(B, size, D) for size in (N, M, M)])


def test_detach_in_place_without_gradients():
    fused(DETACHED["weights"], heads(), training=False)


OPERAND_DETACHED = {
    "before": lambda q, k, v: (q.detach_(), F.silu(q @ k.mT) @ v)[1],
    "between": lambda q, k, v: (lambda w: (v.detach_(), w @ v)[1])(F.silu(q @ k.mT)),
    "after its view": lambda q, k, v: (lambda t: (k.detach_(), F.silu(q @ t) @ v)[1])(k.mT),
    "after": lambda q, k, v: (lambda o: (q.detach_(), o)[1])(F.silu(q @ k.mT) @ v),
    "copy": lambda q, k, v: F.silu(q.float().detach_() @ k.mT) @ v,
}


@pytest.mark.parametrize("when", OPERAND_DETACHED)
def test_operand_detached_in_place(when):
    def attention(q, k, v):
        return OPERAND_DETACHED[when](q * 1.0, k * 1.0, v * 1.0)

    judged(attention, heads())


@is_fused(lambda: heads(torch.bfloat16))
def test_hook_on_an_upcast_sees_its_gradient(q, k, v):
    q32 = q.float()
    q32.register_hook(lambda grad: grad * 2.0)
    return F.silu(q32 @ k.float().mT) @ v.float()


@pytest.mark.parametrize("what", ["scores", "weights"])
def test_hook_between_the_products(what):
    def attention(q, k, v):
        s = q @ k.mT
        w = F.silu(s)
        (s if what == "scores" else w).register_hook(lambda grad: grad * 2.0)
        return (F.silu(s) if what == "scores" else w) @ v

    assert not judged(attention, heads()).matches


# Operands that change before the backward


def masked(q, k, v, lengths):
    keep = torch.arange(M) < lengths[:, None, None, None]
    return torch.where(keep, F.silu(q @ k.mT), 0.0) @ v


def counted(q, k, v, lengths):
    out = masked(q, k, v, lengths)
    lengths.add_(1)
    return out


def residual(q, k, v):
    h = q * 1.0
    h += F.relu(h @ k.mT) @ v
    return h


def decayed(q, k, v):
    out = F.silu(q @ k.mT) @ v
    with torch.no_grad():
        v.mul_(0.9)
        k.copy_(k * 0.5)
    return out


LATER = {
    "lengths": (counted, lambda: [*heads(), LENGTHS]),
    "residual": (residual, frozen),
    "buffers": (decayed, lambda: [drawn(B, H, N, D, grad=False), *frozen()[1:]]),
    "upcast": (
        lambda q, k, v: (F.silu(q.float() @ k.float().mT) @ v.float(), k.mul_(2.0), v.zero_())[0],
        lambda: [x.bfloat16().detach().requires_grad_(x.requires_grad) for x in frozen()],
    ),
    "bias": (
        lambda q, k, v, b: (F.silu(q @ k.mT + b) @ v, b.mul_(2.0))[0],
        lambda: [*heads(), drawn(M, grad=False)],
    ),
}


@pytest.mark.parametrize("what", LATER)
def test_operand_changed_after_the_output(what):
    function, operands = LATER[what]
    fused(function, operands())


@pytest.mark.parametrize("backend", ["gdpa", "aot_eager"])
@pytest.mark.parametrize("what", ["lengths", "residual", "upcast"])
def test_operand_changed_after_the_output_compiled(what, backend):
    function, operands = LATER[what]
    judged(function, operands(), backend=_aot(backend))


def _aot(name):
    """The recorder's rewrite, before AOTAutograd runs the graph eagerly; others as they are."""
    if name != "aot_eager":
        return name

    def backend(gm, inputs):
        from torch._dynamo.backends.debugging import aot_eager_decomp_partition

        assert gdpa_inductor.patterns.rewrite_graph(gm, options=ALWAYS).matches
        return aot_eager_decomp_partition(gm, inputs)

    return backend


@pytest.mark.parametrize("backend", [None, "gdpa", "aot_eager"])
def test_lengths_changed_by_the_caller(backend):
    judged(
        masked,
        [*heads(), LENGTHS],
        backend=_aot(backend),
        between=lambda q, k, v, lengths: lengths.add_(3),
    )


@is_refused("MUTATED_OPERAND", lambda: [*heads(), drawn(B, H, N, M)])
def test_operand_as_large_as_the_scores_changed_after_the_output(q, k, v, bias):
    bias = bias * 1.0
    out = F.silu(q @ k.mT + bias) @ v
    bias.zero_()
    return out


@is_refused("MUTATED_OPERAND", heads)
def test_operand_changed_behind_autograd_after_the_output(q, k, v):
    """Eager's backward has then the new keys, and the old scores."""
    k = k * 1.0
    out = F.silu(q @ k.mT) @ v
    k.data.mul_(2.0)
    return out


def test_operand_changed_after_a_part_under_autocast():
    """The region is in a body of its own in an export; what follows is not."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.query = torch.nn.Parameter(torch.randn(B, H, N, D))
            self.register_buffer("lengths", torch.tensor([3, 6]))

        def forward(self, k, v):
            with torch.autocast("cpu", enabled=False):
                out = masked(self.query, k, v, self.lengths)
            self.lengths.add_(1)
            return out

    torch.manual_seed(0)
    model, (_, *arguments) = Model(), heads(grad=False)
    program = torch.export.export(model, tuple(arguments))
    changed, report = gdpa_inductor.rewrite(program, profit=False)
    assert len(report.matches) == 1
    gradients = []
    for module in (program.module(), changed.module()):
        module(*arguments).sum().backward()
        gradients.append(module.query.grad)
    torch.testing.assert_close(*gradients)


# Numbers


@pytest.fixture
def scalars():
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        yield


@pytest.mark.parametrize("how", ["item", "float"])
@pytest.mark.parametrize("through", ["itself", "an alias"])
def test_number_that_changes_after_it_was_read(scalars, how, through):
    def attention(q, k, v, c):
        x = c.item() if how == "item" else float(c)
        (c if through == "itself" else c.view(1)).add_(5.0)
        return F.silu(q @ k.mT * x) @ v

    refused("MUTATED_OPERAND", attention, [*heads(grad=False), torch.tensor(2.0)], training=False)


def test_number_that_changes_before_it_is_read(scalars):
    def attention(q, k, v, c):
        c.add_(5.0)
        return F.silu(q @ k.mT * c.item()) @ v

    fused(attention, [*heads(), torch.tensor(2.0)])


def test_a_number_has_no_gradient(scalars):
    fused(
        lambda q, k, v, c: F.silu(q @ k.mT * c.item()) @ v,
        [*heads(), torch.tensor(2.0, requires_grad=True)],
    )
