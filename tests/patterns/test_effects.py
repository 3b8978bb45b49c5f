"""Writes in place around a region: each is refused, or fused to the letter."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import gdpa_inductor
from tests.patterns.effects import (
    B,
    D,
    H,
    M,
    N,
    drawn,
    fused,
    heads,
    is_exact,
    is_fused,
    is_refused,
    judged,
)

# A copy that is written into is an operand of its own

WRITES = {
    "mul_": lambda x: x.mul_(0.5),
    "operator": lambda x: x.__imul__(0.5),
    "out=": lambda x: torch.mul(x, 0.5, out=x),
    "foreach": lambda x: torch._foreach_mul_([x], 0.5),
    "view": lambda x: x.view(-1)[3:].mul_(0.5),
    "transposed": lambda x: x.mT.mul_(0.5),
    "slice": lambda x: x.__setitem__((Ellipsis, slice(0, 2)), 0.0),
    "mask": lambda x: x.__setitem__(x > 0.5, 0.0),
    "masked_fill_": lambda x: x.masked_fill_(x > 0.5, 0.0),
    "copy_": lambda x: x.copy_(x * 0.5),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([1]), 0.0),
    "fill_diagonal": lambda x: x.diagonal(dim1=-2, dim2=-1).fill_(0.0),
    "inplace=": lambda x: F.relu(x, inplace=True),
    "clamp_": lambda x: x.clamp_(-0.2, 0.2),
    "zero_": lambda x: x[0].zero_(),
    "reshaped": lambda x: x.reshape(-1).mul_(0.5),
    "select": lambda x: x.select(1, 0).neg_(),
    "aten": lambda x: torch.ops.aten.mul_.Tensor(x, torch.tensor(0.5)),
    "torch.tanh_": torch.tanh_,
    "inplace by position": lambda x: F.relu(x, True),
}
NO_GRADIENT = {"out="}
UPCASTS = {
    "float": lambda x: x.float(),
    "to": lambda x: x.to(torch.float32),
    "type": lambda x: x.type(torch.float32),
    "copy": lambda x: x.to(torch.float32, copy=True),
    "of a view": lambda x: x.mT.float().mT,
}


def before_both(q, k, v, write, up):
    q32, k32, v32 = up(q), up(k), up(v)
    for x in (q32, k32, v32):
        write(x)
    return F.silu(q32 @ k32.mT) @ v32


def between(q, k, v, write, up):
    v32 = up(v)
    weights = F.silu(up(q) @ up(k).mT)
    write(v32)
    return weights @ v32


def behind_a_view(q, k, v, write, up):
    q32 = up(q)
    turned = q32.mT
    write(q32)
    return F.silu(turned.mT @ up(k).mT) @ up(v)


@pytest.mark.parametrize("up", UPCASTS)
@pytest.mark.parametrize("where", [before_both, between, behind_a_view])
def test_upcast_that_is_written_into(up, where):
    fused(lambda q, k, v: where(q, k, v, WRITES["mul_"], UPCASTS[up]), heads(torch.bfloat16))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("where", [before_both, between])
def test_every_way_to_write_into_an_upcast(write, where):
    fused(
        lambda q, k, v: where(q, k, v, WRITES[write], UPCASTS["float"]),
        heads(torch.bfloat16, grad=write not in NO_GRADIENT),
        training=write not in NO_GRADIENT,
    )


@pytest.mark.parametrize("alias", ["data", "detach"])
def test_upcast_that_is_written_into_behind_autograd(alias):
    def attention(q, k, v):
        q32 = q.float()
        (q32.data if alias == "data" else q32.detach()).mul_(0.5)
        return F.silu(q32 @ k.float().mT) @ v.float()

    fused(attention, heads(torch.bfloat16))


@is_fused(lambda: heads(torch.bfloat16))
def test_upcast_that_is_written_into_without_gradients(q, k, v):
    q32 = q.float()
    with torch.no_grad():
        q32.mul_(0.5)
    return F.silu(q32 @ k.float().mT) @ v.float()


def test_upcast_bias_and_mask_that_are_written_into():
    def attention(q, k, v, bias, mask):
        bias32, keep = bias.float(), mask.float()
        bias32.mul_(3.0)
        keep.fill_diagonal_(0.0)
        return (F.silu(q @ k.mT + bias32) * keep) @ v

    mask = torch.rand(N, M) > 0.5
    fused(attention, [*heads(), drawn(N, M, dtype=torch.bfloat16), mask])


@is_fused(lambda: heads(torch.bfloat16), training=False)
def test_upcast_that_is_written_into_after_the_output(q, k, v):
    q32 = q.float()
    out = F.silu(q32 @ k.float().mT) @ v.float()
    return out, q32.mul_(2.0)


@is_fused(lambda: heads(torch.bfloat16, grad=False))
def test_what_an_upcast_was_made_from_is_written(q, k, v):
    q32 = q.float()
    q.mul_(0.0)
    return F.silu(q32 @ k.float().mT) @ v.float()


def test_upcast_that_is_written_into_in_a_checkpoint():
    def attention(q, k, v):
        q32 = q.float()
        q32.mul_(0.5)
        return F.silu(q32 @ k.float().mT) @ v.float()

    fused(lambda *x: checkpoint(attention, *x, use_reentrant=False), heads(torch.bfloat16))


@pytest.mark.parametrize("written", [lambda out: out, lambda out: out[:]])
def test_a_foreach_writes_into_the_result_in_a_checkpoint(written):
    """Of views that a checkpoint's body makes, torch loses the gradient of such a write."""

    def attention(q, k, v):
        out = F.silu(q @ k.mT) @ v
        torch._foreach_mul_([written(out)], 0.5)
        return out

    fused(lambda *x: checkpoint(attention, *x, use_reentrant=False), heads())


class Written(torch.nn.Module):
    def forward(self, q, k, v):
        q32 = q.float()
        q32.view(-1).mul_(0.5)
        return F.silu(q32 @ k.mT) @ v


def test_upcast_that_is_written_into_in_an_export():
    torch.manual_seed(0)
    q, k, v = heads(grad=False)
    operands = (q.bfloat16(), k, v)
    program, report = gdpa_inductor.rewrite(torch.export.export(Written(), operands), profit=False)
    assert len(report.matches) == 1
    torch.testing.assert_close(program.module()(*operands), Written()(*operands))


@is_exact(lambda: heads(torch.bfloat16), backend="gdpa")
def test_default_options(q, k, v):
    """The advisory's own program, through the backend."""
    q32 = q.float()
    q32.mul_(D**-0.5)
    return F.silu(q32 @ k.float().mT) @ v.float()


# Dims in place: a fake value has those that its tensor has in the end

RESHAPED = {
    "operand before": lambda q, k, v: F.silu(q.transpose_(-1, -2).mT @ k.mT) @ v,
    "operand after": lambda q, k, v: (lambda o: (q.transpose_(-1, -2), o)[1])(F.silu(q @ k.mT) @ v),
    "operand between": lambda q, k, v: (
        lambda w: (v.transpose_(0, 1), w @ v.transpose(0, 1))[1]
    )(F.silu(q @ k.mT)),
    "scores": lambda q, k, v: F.silu((q @ k.mT).transpose_(-1, -2)) @ v,
    "scores later": lambda q, k, v: (
        lambda s: (s.transpose_(-1, -2), F.silu(s) @ v)[1]
    )(q @ k.mT),
    "output": lambda q, k, v: (F.silu(q @ k.mT) @ v).transpose_(1, 2),
}  # fmt: skip


@pytest.mark.parametrize("what", RESHAPED)
def test_dims_changed_in_place(what):
    def attention(q, k, v):
        return RESHAPED[what](q * 1.0, k * 1.0, v * 1.0)

    training = what != "operand after"  # eager's backward notices it
    judged(attention, heads(), training=training)
    equal = [drawn(B, 4, 4, 4) for _ in range(3)]  # shapes say nothing
    judged(attention, equal, training=training)


@is_refused(
    "OPAQUE_CALL", lambda: [*heads(grad=False), drawn(B, H, N, D, grad=False)], training=False
)
def test_another_storage(q, k, v, other):
    q, alias = q * 1.0, q.view(-1)
    out = q @ k.mT
    alias.mul_(2.0)
    q.set_(other)
    return F.silu(out) @ v


# A copy may be an alias: strides decide

MAYBE = {
    "contiguous": lambda s: s.contiguous(),
    "reshape": lambda s: s.reshape(B, H, N, M),
    "to": lambda s: s.to(torch.float32),
    "flatten": lambda s: s.flatten(0, 1).view(B, H, N, M),
}
PRODUCTS = {
    "matmul": lambda q, k: q @ k.mT,
    "einsum": lambda q, k: torch.einsum("bhnd,bhmd->bhnm", q, k),
    "transposed": lambda q, k: (k @ q.mT).mT,
    "turned": lambda q, k: torch.einsum("bhnd,bhmd->bnhm", q, k).transpose(1, 2),
}  # fmt: skip


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("copy", MAYBE)
@pytest.mark.parametrize("written", ["copy", "source", "both"])
def test_scores_and_what_may_be_a_copy(product, copy, written):
    def attention(q, k, v):
        s = PRODUCTS[product](q, k)
        t = MAYBE[copy](s)
        if written != "source":
            t.mul_(0.5)
        if written != "copy":
            s.add_(1.0)
        return (F.relu(s) + F.silu(t)) @ v

    judged(attention, heads(), training=False)


@pytest.mark.parametrize("copy", MAYBE)
def test_what_may_be_a_copy_alone_is_written(copy):
    def attention(q, k, v):
        s = MAYBE[copy](q @ k.mT)
        s.mul_(0.5)
        return F.silu(s) @ v

    fused(attention, heads())


# Dead code


def second_attention(s, v):
    t = torch.tanh(s)
    return F.relu(t.mT @ t) @ v


DEAD = {
    "attention": lambda s, q, k, v: second_attention(s, v),
    "its weights": lambda s, q, k, v: F.relu(F.silu(s) @ v @ k.mT) @ v,
    "twice": lambda s, q, k, v: (second_attention(s, v), second_attention(s * 2.0, v)),
    "chain": lambda s, q, k, v: second_attention(second_attention(s, v) @ k.mT, v),
    "same scores": lambda s, q, k, v: F.relu(s) @ v,
}


@pytest.mark.parametrize("what", DEAD)
def test_dead_attention(what):
    def attention(q, k, v):
        s = q @ k.mT
        DEAD[what](s, q, k, v)
        return F.silu(s) @ v

    fused(attention, heads())


def test_dead_code_of_two_regions():
    def attention(q, k, v):
        s, t = q @ k.mT, k @ q.mT
        dead = (s + t.mT).tanh()
        dead = F.relu(dead @ dead) @ v + F.silu(dead) @ v
        return F.silu(s) @ v, F.gelu(t) @ q

    recorder = judged(attention, heads())
    assert len(recorder.matches) == 2, recorder.why()


# Offsets that are changed are not the running sums of the lengths

VALUES, PADDED = 64, 40
pad, unpad = torch.ops.gdpa.jagged_to_padded_dense, torch.ops.gdpa.dense_to_jagged


def jagged(q, k, v, offsets, last, mask):
    q, k, v = (pad(x, offsets, PADDED).transpose(1, 2) for x in (q, k, v))
    out = (torch.sigmoid(q @ k.mT) * mask) @ v
    return unpad(out.transpose(1, 2), last, VALUES)


def own(lengths):
    return (torch.arange(PADDED) < lengths[:, None])[:, None, None]


def cast_sums(lengths):
    sums = lengths.cumsum(0)
    sums.add_(4)
    return F.pad(sums.int(), (1, 0))


def cast_of_a_view(lengths):
    sums = lengths.cumsum(0)
    sums[:1].add_(2)
    return F.pad(sums.int(), (1, 0))


def changed_zero(lengths):
    zero = torch.zeros(1, dtype=torch.int64)
    zero.add_(3)
    return torch.cat([zero, lengths.cumsum(0)])


def changed_cast(lengths):
    sums = lengths.cumsum(0).int()
    sums.add_(4)
    return F.pad(sums, (1, 0))


CHANGED = [cast_sums, cast_of_a_view, changed_zero, changed_cast]


def values():
    return [drawn(VALUES, H, D) for _ in range(3)]


@pytest.mark.parametrize("offsets", CHANGED)
def test_a_mask_by_lengths_that_changed_offsets_do_not_have(offsets):
    def attention(q, k, v, lengths):
        result = offsets(lengths)
        return jagged(q, k, v, result, result, own(lengths))

    recorder = fused(attention, [*values(), torch.tensor([20, 26, 14])])
    (match,) = recorder.matches
    assert match.problem.jagged and "lt" in str(match.score_mod)


@pytest.mark.parametrize("offsets", CHANGED)
def test_changed_offsets_are_others(offsets):
    def attention(q, k, v, lengths):
        return jagged(q, k, v, F.pad(lengths.cumsum(0), (1, 0)), offsets(lengths).long(), 1.0)

    recorder = judged(attention, [*values(), torch.tensor([20, 26, 14])])
    assert not any(match.problem.jagged_query for match in recorder.matches)
