"""What a reader of torch's semantics wrote around attention, without a look at the matcher.

547 programs. Those of `ELSEWHERE` are not run by test_hunts.py: it compares no complex and no 8-bit
numbers and has bounds for one precision, eager's own gradient is of changed operands, padding is
not finite (docs/jagged.md), or a second derivative is asked for, which stock refuses too.
"""

# ruff: noqa: RUF005, RUF059, UP034
import torch
import torch.nn.functional as F
import torch.utils.checkpoint

D = torch.float64


def qkv(b=2, h=2, n=5, d=4, m=None, dtype=D):
    m = m or n
    return (
        torch.randn(b, h, n, d, dtype=torch.float64).to(dtype),
        torch.randn(b, h, m, d, dtype=torch.float64).to(dtype),
        torch.randn(b, h, m, d, dtype=torch.float64).to(dtype),
    )


def operands():
    return tuple(x.requires_grad_() for x in qkv())


def operands32():
    return tuple(x.requires_grad_() for x in qkv(dtype=torch.float32))


def operandsbf():
    return tuple(x.requires_grad_() for x in qkv(dtype=torch.bfloat16))


def flat():
    return tuple(x[:, 0].detach().clone().requires_grad_() for x in qkv())


CASES = []


def case(ops=operands, before=None):
    def add(f):
        CASES.append(((f, before) if before else f, ops))
        return f

    return add


def T(x):
    return x.transpose(-1, -2)


@case()
def plain(q, k, v):
    return F.silu(q @ T(k) * 0.5) @ v


@case()
def weights_returned(q, k, v):
    w = torch.sigmoid(q @ T(k))
    return w @ v, w


@case()
def weights_detached_returned(q, k, v):
    w = torch.sigmoid(q @ T(k))
    return w @ v, w.detach().mean()


@case()
def row_normalised(q, k, v):
    w = F.relu(q @ T(k)) + 0.1
    w = w / w.sum(-1, keepdim=True)
    return w @ v


@case()
def row_normalised_after(q, k, v):
    w = torch.sigmoid(q @ T(k))
    return (w @ v) / w.sum(-1, keepdim=True)


@case()
def row_normalised_detached(q, k, v):
    w = torch.sigmoid(q @ T(k))
    return (w @ v) / w.detach().sum(-1, keepdim=True)


@case()
def detach_weights(q, k, v):
    return torch.sigmoid(q @ T(k)).detach() @ v


@case()
def detach_scores_in_gate(q, k, v):
    s = q @ T(k)
    return (s * torch.sigmoid(s.detach())) @ v


@case()
def straight_through(q, k, v):
    s = q @ T(k)
    h = (s > 0).to(s.dtype)
    soft = torch.sigmoid(s)
    return (h + soft - soft.detach()) @ v


@case()
def no_grad_weights(q, k, v):
    with torch.no_grad():
        w = torch.tanh(q @ T(k))
    return w @ v


@case()
def no_grad_scores_only(q, k, v):
    with torch.no_grad():
        s = q @ T(k)
    return torch.tanh(s) @ v


@case()
def no_grad_value(q, k, v):
    w = torch.tanh(q @ T(k))
    with torch.no_grad():
        u = v * 2
    return w @ u


@case()
def no_grad_last_product(q, k, v):
    w = torch.tanh(q @ T(k))
    with torch.no_grad():
        o = w @ v
    return o, w.sum()


@case()
def enable_grad_inside(q, k, v):
    with torch.no_grad():
        with torch.enable_grad():
            s = q @ T(k)
        w = F.relu(s)
    return w @ v, s


@case()
def inference_island(q, k, v):
    with torch.inference_mode():
        m = q @ T(k) > 0
    return (F.silu(q @ T(k)) * m.clone()) @ v


@case(lambda: qkv())
def inplace_on_weights(q, k, v):
    w = q @ T(k)
    w.sigmoid_()
    w.mul_(0.5)
    return w @ v


@case(lambda: qkv())
def inplace_on_weight_view(q, k, v):
    w = torch.tanh(q @ T(k))
    w[..., 0].zero_()
    return w @ v


@case(lambda: qkv())
def inplace_diag_fill(q, k, v):
    w = torch.tanh(q @ T(k))
    torch.diagonal(w, dim1=-2, dim2=-1).fill_(0.0)
    return w @ v


@case()
def inplace_on_output_view(q, k, v):
    o = F.silu(q @ T(k)) @ v
    o[:, 0].mul_(2)
    return o


@case()
def value_written_after(q, k, v):
    u = v * 1.0
    o = F.silu(q @ T(k)) @ u
    u2 = u.detach()
    return o, u2 + 1


def nograd_ops():
    return qkv()


@case(nograd_ops)
def value_written_between(q, k, v):
    w = F.silu(q @ T(k))
    v.mul_(2)
    return w @ v


@case(nograd_ops)
def key_written_between(q, k, v):
    w = F.silu(q @ T(k))
    k.mul_(2)
    return w @ v


@case(nograd_ops)
def key_view_written_between(q, k, v):
    kt = T(k)
    k[..., 0, :].zero_()
    w = F.silu(q @ kt)
    k.add_(1)
    return w @ v


@case(nograd_ops)
def query_is_output_target(q, k, v):
    w = F.silu(q @ T(k))
    q.copy_(w @ v)
    return q


@case(nograd_ops)
def matmul_out_value(q, k, v):
    w = F.silu(q @ T(k))
    o = torch.empty_like(v)
    torch.matmul(w, v, out=o)
    return o


def shared_storage():
    x = torch.randn(2, 2, 5, 12, dtype=D)
    return (x,)


@case(shared_storage)
def chunks_of_arg_written(x):
    q, k, v = x.chunk(3, -1)
    w = F.silu(q @ T(k))
    x[..., 8:].mul_(3.0)
    return w @ v


@case(shared_storage)
def chunks_of_arg_written_k(x):
    q, k, v = x.chunk(3, -1)
    w = F.silu(q @ T(k))
    k.zero_()
    return w @ v, x


def mask_and(q3):
    return q3


def with_mask():
    q, k, v = qkv()
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), (torch.rand(5, 5) > 0.4)


@case(lambda: qkv() + (torch.rand(5, 5) > 0.4,))
def mask_written_between(q, k, v, m):
    w = F.silu(q @ T(k)) * m
    m.logical_not_()
    o = w @ v
    return o


@case(with_mask)
def mask_where_nan(q, k, v, m):
    s = q @ T(k)
    return torch.where(m, torch.sqrt(s), 0.0) @ v


@case(with_mask)
def mask_where_log(q, k, v, m):
    s = q @ T(k)
    return torch.where(s > 0, torch.log(s), torch.zeros_like(s)) @ v


@case(with_mask)
def masked_fill_then_relu_plus1(q, k, v, m):
    s = (q @ T(k)).masked_fill(~m, float("-inf"))
    return torch.sigmoid(s) @ v


@case(with_mask)
def masked_fill_inf_silu(q, k, v, m):
    s = (q @ T(k)).masked_fill(~m, float("-inf"))
    return F.silu(s) @ v


@case(with_mask)
def masked_fill_elu1(q, k, v, m):
    s = (q @ T(k)).masked_fill(~m, float("-inf"))
    return (F.elu(s) + 1) @ v


@case(with_mask)
def mask_add_int(q, k, v, m):
    return torch.sigmoid(q @ T(k) + m.to(torch.int64) * -100) @ v


@case(with_mask)
def mask_minus_bool_invert(q, k, v, m):
    return (F.relu(q @ T(k)) * (1 - m.to(torch.uint8))) @ v


@case(with_mask)
def mask_uint8_neg(q, k, v, m):
    return (F.relu(q @ T(k)) * (-m.to(torch.uint8))) @ v


@case(with_mask)
def mask_uint8_minus2(q, k, v, m):
    return (F.relu(q @ T(k)) * (m.to(torch.uint8) - 2)) @ v


@case(with_mask)
def mask_uint8_invert(q, k, v, m):
    return (F.relu(q @ T(k)) * (~m.to(torch.uint8))) @ v


@case(with_mask)
def mask_int8_overflow(q, k, v, m):
    return (F.relu(q @ T(k)) * (m.to(torch.int8) * 100 + m.to(torch.int8) * 100)) @ v


@case()
def positions_int8_overflow(q, k, v):
    i = torch.arange(5, dtype=torch.int8) * 60
    return (F.relu(q @ T(k)) * ((i[:, None] - i[None, :]) >= 0)) @ v


@case()
def positions_uint8_difference(q, k, v):
    i = torch.arange(5, dtype=torch.uint8)
    return (F.relu(q @ T(k)) * ((i[:, None] - i[None, :]) < 3)) @ v


@case()
def positions_half(q, k, v):
    i = torch.arange(2048, 2053).half()
    return (F.relu(q @ T(k)) * (i[:, None] > i[None, :])) @ v


@case()
def positions_bf16_arange(q, k, v):
    i = torch.arange(256, 261, dtype=torch.bfloat16)
    return (F.relu(q @ T(k)) * (i[:, None] > i[None, :])) @ v


@case()
def positions_float_step(q, k, v):
    i = torch.arange(0, 0.5, 0.1)
    return (F.relu(q @ T(k)) * (i[:, None] * 3 - i[None, :] <= 0.3)) @ v


@case()
def positions_linspace(q, k, v):
    i = torch.linspace(0, 1, 5)
    return (F.relu(q @ T(k)) * (i[:, None] >= i[None, :])) @ v


@case()
def mask_roll(q, k, v):
    m = torch.roll(torch.ones(5, 5).tril(), 1, 0)
    return (F.relu(q @ T(k)) * m) @ v


@case()
def mask_flip(q, k, v):
    m = torch.flip(torch.ones(5, 5).tril(), (1,))
    return (F.relu(q @ T(k)) * m) @ v


@case()
def tril_of_scores_diag(q, k, v):
    return F.silu(torch.tril(q @ T(k), -1)) @ v


@case()
def tril_before_sigmoid(q, k, v):
    return torch.sigmoid(torch.tril(q @ T(k))) @ v


@case()
def triu_of_transposed(q, k, v):
    return T(torch.triu(F.silu(k @ T(q)))) @ v


@case()
def mod_positions(q, k, v):
    i = torch.arange(5)
    return (F.relu(q @ T(k)) * ((i[:, None] - i[None, :]) % 2 == 0)) @ v


@case()
def fmod_positions(q, k, v):
    i = torch.arange(5)
    return (F.relu(q @ T(k)) * (torch.fmod(i[:, None] - i[None, :], 3) == 1)) @ v


@case()
def remainder_positions(q, k, v):
    i = torch.arange(5)
    return (F.relu(q @ T(k)) * (torch.remainder(i[:, None] - i[None, :], -3) == -1)) @ v


@case()
def div_floor_positions(q, k, v):
    i = torch.arange(5)
    return (
        F.relu(q @ T(k)) * (torch.div(i[:, None] - i[None, :], 2, rounding_mode="floor") == -1)
    ) @ v


@case()
def div_trunc_positions(q, k, v):
    i = torch.arange(5)
    return (
        F.relu(q @ T(k)) * (torch.div(i[:, None] - i[None, :], 2, rounding_mode="trunc") == 0)
    ) @ v


@case()
def shift_positions(q, k, v):
    i = torch.arange(5)
    return (F.relu(q @ T(k)) * (((i[:, None] - i[None, :]) >> 1) == -1)) @ v


@case()
def bits_positions(q, k, v):
    i = torch.arange(5)
    return (F.relu(q @ T(k)) * ((i[:, None] ^ i[None, :]) & 2)) @ v


@case()
def lshift_positions(q, k, v):
    i = torch.arange(5, dtype=torch.uint8)
    return (F.relu(q @ T(k)) * ((i[:, None] << 7) + i[None])) @ v


@case()
def mask_cumsum(q, k, v):
    m = torch.ones(5, 5).cumsum(-1) > torch.ones(5, 5).cumsum(-2)
    return (F.relu(q @ T(k)) * m) @ v


@case()
def mask_one_hot(q, k, v):
    m = F.one_hot(torch.tensor([0, 2, 1, 4, 3]), 5)
    return (F.relu(q @ T(k)) * m) @ v


@case()
def mask_bucketize(q, k, v):
    i = torch.arange(5)
    b = torch.bucketize(i, torch.tensor([1, 3]))
    return (F.relu(q @ T(k)) * (b[:, None] == b[None])) @ v


@case()
def mask_searchsorted(q, k, v):
    b = torch.searchsorted(torch.tensor([0, 2, 5]), torch.arange(5), right=True)
    return (F.relu(q @ T(k)) * (b[:, None] == b[None])) @ v


@case()
def mask_scatter(q, k, v):
    m = torch.zeros(5, 5, dtype=D).scatter(1, torch.tensor([[0], [1], [1], [4], [2]]), 1.0)
    return (F.relu(q @ T(k)) * m) @ v


@case()
def mask_topk(q, k, v):
    s = q @ T(k)
    t = s.topk(2, -1).values[..., -1:]
    return (F.relu(s) * (s >= t)) @ v


@case()
def mask_topk_detached(q, k, v):
    s = q @ T(k)
    t = s.detach().topk(2, -1).values[..., -1:]
    return (F.relu(s) * (s >= t)) @ v


@case()
def mask_from_scores_threshold(q, k, v):
    s = q @ T(k)
    return (s * (s > 0.3)) @ v


@case()
def mask_from_scores_float(q, k, v):
    s = q @ T(k)
    return (torch.exp(-s.abs()) * (s > 0.3).to(torch.int8)) @ v


@case()
def max_subtracted(q, k, v):
    s = q @ T(k)
    return torch.exp(s - s.amax(-1, keepdim=True)) @ v


@case()
def max_subtracted_detached(q, k, v):
    s = q @ T(k)
    return torch.exp(s - s.amax(-1, keepdim=True).detach()) @ v


@case()
def dropout_weights(q, k, v):
    return F.dropout(F.silu(q @ T(k)), 0.3) @ v


@case()
def dropout_eval(q, k, v):
    return F.dropout(F.silu(q @ T(k)), 0.3, training=False) @ v


@case()
def dropout_one(q, k, v):
    return F.dropout(F.silu(q @ T(k)), 1.0) @ v


@case()
def dropout_after(q, k, v):
    return F.dropout(F.silu(q @ T(k)) @ v, 0.3)


@case()
def dropout_two_draws(q, k, v):
    a = torch.rand(3, dtype=D)
    o = F.silu(q @ T(k)) @ F.dropout(v, 0.2)
    return o * torch.rand(1, dtype=D), a


@case()
def rrelu_train(q, k, v):
    return F.rrelu(q @ T(k), training=True) @ v


@case()
def rand_mask(q, k, v):
    return (F.silu(q @ T(k)) * (torch.rand(5, 5) > 0.5)) @ v


@case()
def q_is_k_is_v(q, k, v):
    return F.silu(q @ T(q)) @ q


@case()
def same_scores_twice(q, k, v):
    w = F.silu(q @ T(k))
    return w @ v, w @ (v + 1)


@case()
def transposed_weights(q, k, v):
    w = F.silu(q @ T(k))
    return T(w) @ v


@case()
def weights_plus_eye(q, k, v):
    return (F.silu(q @ T(k)) + torch.eye(5, dtype=D)) @ v


@case()
def two_activations_sum(q, k, v):
    s = q @ T(k)
    return (F.silu(s) + torch.tanh(s)) @ v


@case()
def sum_of_attentions(q, k, v):
    return F.silu(q @ T(k)) @ v + torch.tanh(k @ T(q)) @ v


@case()
def diff_attention(q, k, v):
    q1, q2 = q.chunk(2, -1)
    k1, k2 = k.chunk(2, -1)
    return (F.relu(q1 @ T(k1)) - 0.3 * F.relu(q2 @ T(k2))) @ v


@case()
def product_of_scores(q, k, v):
    return (torch.sigmoid(q @ T(k)) * torch.tanh(k @ T(q))) @ v


@case()
def scores_plus_scores(q, k, v):
    return F.relu(q @ T(k) + k @ T(q)) @ v


@case()
def linear_attention(q, k, v):
    return F.relu(q) @ (T(F.relu(k)) @ v)


@case()
def second_order(q, k, v):
    o = F.silu(q @ T(k)) @ v
    (g,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    return g


# ---- batch 2
@case()
def create_graph_penalty_first(q, k, v):
    o = F.silu(q @ T(k)) @ v
    return o, o.square().mean()


@case(
    lambda: (
        tuple(x.requires_grad_() for x in qkv()) + (torch.tensor(0.7, dtype=D, requires_grad=True),)
    )
)
def scale_parameter(q, k, v, s):
    return F.silu(q @ T(k) * s) @ v


@case(
    lambda: (
        tuple(x.requires_grad_() for x in qkv()) + (torch.tensor(0.7, dtype=D, requires_grad=True),)
    )
)
def scale_parameter_item(q, k, v, s):
    return F.silu(q @ T(k) * s.detach()) @ v * s


@case(
    lambda: (
        tuple(x.requires_grad_() for x in qkv()) + (torch.tensor(0.7, dtype=D, requires_grad=True),)
    )
)
def scale_on_weights(q, k, v, s):
    return (F.silu(q @ T(k)) * s) @ v


@case(
    lambda: (
        tuple(x.requires_grad_() for x in qkv()) + (torch.tensor(0.7, dtype=D, requires_grad=True),)
    )
)
def scale_clamped(q, k, v, s):
    return F.silu(q @ T(k) * s.clamp(max=0.5)) @ v


@case(
    lambda: (
        tuple(x.requires_grad_() for x in qkv(dtype=torch.float32))
        + (torch.tensor(0.7, dtype=D, requires_grad=True),)
    )
)
def scale_parameter_wide(q, k, v, s):
    return F.silu(q @ T(k) * s) @ v


@case(
    lambda: (
        tuple(x.requires_grad_() for x in qkv(dtype=torch.bfloat16))
        + (torch.tensor(0.7, dtype=torch.float32, requires_grad=True),)
    )
)
def scale_parameter_wide_bf(q, k, v, s):
    return F.silu(q @ T(k) * s) @ v


@case(
    lambda: (
        tuple(x.requires_grad_() for x in qkv(dtype=torch.bfloat16))
        + (torch.randn(5, 5).mul(0.1).requires_grad_(),)
    )
)
def bias_wide_bf(q, k, v, b):
    return (F.silu(q @ T(k) + b)).to(v.dtype) @ v


def with_bias(*shape, dtype=D):
    return lambda: (
        tuple(x.requires_grad_() for x in qkv())
        + (torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_(),)
    )


@case(with_bias(5, 5))
def bias_full(q, k, v, b):
    return torch.sigmoid(q @ T(k) + b) @ v


@case(with_bias(5, 1))
def bias_col(q, k, v, b):
    return torch.sigmoid(q @ T(k) + b) @ v


@case(with_bias(1))
def bias_one(q, k, v, b):
    return torch.sigmoid(q @ T(k) + b) @ v


@case(with_bias(3, 1, 1, 1, 1))
def bias_adds_rank(q, k, v, b):
    return torch.sigmoid(q @ T(k) + b) @ v


@case(with_bias(3, 1, 1, 5, 5))
def bias_adds_rank_mul(q, k, v, b):
    return (torch.sigmoid(q @ T(k)) * b) @ v


@case(with_bias(2, 1, 5, 5))
def bias_used_twice(q, k, v, b):
    return (torch.sigmoid(q @ T(k) + b) * b) @ v


@case(with_bias(2, 1, 5, 5))
def bias_is_relative_gather(q, k, v, b):
    i = torch.arange(5)
    t = b.reshape(-1)[:9]
    return torch.sigmoid(q @ T(k) + t[i[:, None] - i[None] + 4]) @ v


@case(with_bias(9, 2))
def bias_table_heads(q, k, v, b):
    i = torch.arange(5)
    return torch.sigmoid(q @ T(k) + b[i[:, None] - i[None] + 4].permute(2, 0, 1)) @ v


@case(with_bias(9, 2))
def bias_table_negative_index(q, k, v, b):
    i = torch.arange(5)
    return torch.sigmoid(q @ T(k) + b[i[:, None] - i[None]].permute(2, 0, 1)) @ v


@case(with_bias(9, 2))
def bias_embedding(q, k, v, b):
    i = torch.arange(5)
    return (
        torch.sigmoid(
            q @ T(k) + F.embedding(i[:, None] - i[None] + 4, b, padding_idx=4).permute(2, 0, 1)
        )
        @ v
    )


@case(with_bias(9, 2))
def bias_embedding_scaled_grad(q, k, v, b):
    i = torch.arange(5)
    return (
        torch.sigmoid(
            q @ T(k)
            + F.embedding(i[:, None] - i[None] + 4, b, scale_grad_by_freq=True).permute(2, 0, 1)
        )
        @ v
    )


@case(with_bias(9))
def bias_take(q, k, v, b):
    i = torch.arange(5)
    return torch.sigmoid(q @ T(k) + torch.take(b, i[:, None] - i[None])) @ v


@case(with_bias(2, 9))
def bias_gather(q, k, v, b):
    i = torch.arange(5)
    ix = (i[:, None] - i[None] + 4).reshape(1, 25).expand(2, 25)
    return torch.sigmoid(q @ T(k) + b.gather(1, ix).view(2, 5, 5)) @ v


@case(with_bias(2, 9))
def bias_unfold(q, k, v, b):
    return torch.sigmoid(q @ T(k) + b.unfold(1, 5, 1).flip(1)) @ v


@case(with_bias(2, 9))
def bias_as_strided(q, k, v, b):
    return torch.sigmoid(q @ T(k) + torch.as_strided(b, (2, 5, 5), (9, 1, 1))) @ v


@case(with_bias(5))
def bias_outer(q, k, v, b):
    return torch.sigmoid(q @ T(k) + torch.outer(b, b)) @ v


@case(with_bias(5))
def bias_diff_pow(q, k, v, b):
    return torch.sigmoid(q @ T(k) - (b[:, None] - b[None]) ** 2) @ v


@case(with_bias(5))
def mask_float_gate_row_col(q, k, v, b):
    return (torch.sigmoid(q @ T(k)) * b[:, None] * b[None]) @ v


@case(with_bias(5))
def bias_detached_partly(q, k, v, b):
    return torch.sigmoid(q @ T(k) + b[:, None].detach() + b[None]) @ v


@case(with_bias(5, dtype=torch.complex128))
def complex_bias(q, k, v, b):
    return torch.sigmoid(q @ T(k) + b.real) @ v


@case(lambda: tuple(x.requires_grad_() for x in qkv(dtype=torch.complex128)))
def complex_plain(q, k, v):
    return torch.tanh(q @ T(k)) @ v


@case(lambda: tuple(x.requires_grad_() for x in qkv(dtype=torch.complex128)))
def complex_abs(q, k, v):
    return torch.relu((q @ k.mH).abs() - 1) @ v.real


@case(lambda: tuple(x.requires_grad_() for x in qkv(dtype=torch.complex128)))
def complex_real(q, k, v):
    return torch.relu((q @ T(k.conj())).real) @ v.imag


@case(lambda: tuple((x * 3).to(torch.int64) for x in qkv()))
def integers(q, k, v):
    return F.relu(q @ T(k)) @ v


@case(lambda: tuple((x * 50).to(torch.int8) for x in qkv()))
def integers8(q, k, v):
    return F.relu(q @ T(k)) @ v


@case(lambda: tuple((x * 3).to(torch.int64) for x in qkv()))
def integer_scores(q, k, v):
    return torch.sigmoid(q @ T(k)) @ v.float()


@case(lambda: tuple((x * 3).to(torch.int64) for x in qkv()))
def integer_scores_div(q, k, v):
    return ((q @ T(k)) / 3).relu() @ v.float()


@case(lambda: tuple(x.to(torch.float8_e4m3fn) for x in qkv()))
def float8_operands(q, k, v):
    return F.relu(q.float() @ T(k).float()) @ v.float()


@case(operands32)
def float8_weights(q, k, v):
    return torch.sigmoid(q @ T(k)).to(torch.float8_e4m3fn).to(torch.float32) @ v


@case(operands32)
def weights_rounded_bf16(q, k, v):
    return torch.sigmoid(q @ T(k)).bfloat16().float() @ v


@case(operands32)
def scores_rounded_half(q, k, v):
    return F.relu((q @ T(k)).half().float()) @ v


@case(operands32)
def weights_to_int(q, k, v):
    return (q @ T(k)).to(torch.int32).to(torch.float32) @ v


@case(operands32)
def weights_round(q, k, v):
    return torch.round(q @ T(k)) @ v


@case(operands32)
def weights_floor_frac(q, k, v):
    s = q @ T(k)
    return (s - s.floor()) @ v


@case(operands32)
def weights_sign_sqrt(q, k, v):
    s = q @ T(k)
    return (s.sign() * s.abs().sqrt()) @ v


@case(operands32)
def weights_fmod(q, k, v):
    return torch.fmod(q @ T(k), 1.0) @ v


@case(operands32)
def weights_remainder(q, k, v):
    return torch.remainder(q @ T(k), 0.7) @ v


@case(operands32)
def weights_nan_to_num(q, k, v):
    return torch.nan_to_num(torch.log(q @ T(k)), nan=-1.0) @ v


@case(operands32)
def weights_hardshrink(q, k, v):
    return F.hardshrink(q @ T(k), 0.3) @ v


@case(operands32)
def weights_threshold(q, k, v):
    return F.threshold(q @ T(k), 0.2, 7.0) @ v


@case(operands32)
def weights_celu(q, k, v):
    return F.celu(q @ T(k), -0.7) @ v


@case(operands32)
def weights_elu_neg(q, k, v):
    return F.elu(q @ T(k), 0.3) @ v


@case(operands32)
def weights_leaky(q, k, v):
    return F.leaky_relu(q @ T(k), -0.2) @ v


@case(operands32)
def weights_softplus(q, k, v):
    return F.softplus(q @ T(k), beta=3, threshold=1) @ v


@case(operands32)
def weights_gelu_tanh(q, k, v):
    return F.gelu(q @ T(k), approximate="tanh") @ v


@case(operands32)
def weights_glu_like(q, k, v):
    a = torch.cat([q @ T(k), k @ T(q)], -1)
    return F.glu(a) @ v


@case(operands32)
def weights_prelu(q, k, v):
    return F.prelu(q @ T(k), torch.tensor([0.1, 0.4])) @ v


@case(lambda: operands32() + (torch.tensor([0.1, 0.4], requires_grad=True),))
def weights_prelu_learned(q, k, v, a):
    return F.prelu(q @ T(k), a) @ v


@case(lambda: operands32() + (torch.tensor([0.4], requires_grad=True),))
def weights_prelu_learned1(q, k, v, a):
    return F.prelu(q @ T(k), a) @ v


@case()
def weights_pow_zero(q, k, v):
    return F.relu(q @ T(k)) ** 0 @ v


@case()
def weights_pow_half(q, k, v):
    return (F.relu(q @ T(k)) ** 0.5) @ v


@case()
def weights_relu2_max(q, k, v):
    return torch.maximum(q @ T(k), torch.zeros((), dtype=D)).square() @ v


@case()
def relu_maximum_ties(q, k, v):
    s = q.round() @ T(k.round())
    return torch.maximum(s, torch.zeros_like(s)) @ v


@case()
def relu_clamp_ties(q, k, v):
    s = q.round() @ T(k.round())
    return s.clamp(0, 1) @ v


@case()
def relu_clamp_tensor(q, k, v):
    s = q.round() @ T(k.round())
    return s.clamp(torch.zeros(1, dtype=D), torch.ones(1, dtype=D)) @ v


@case()
def clamp_reversed(q, k, v):
    return (q @ T(k)).clamp(1, -1) @ v


@case()
def clamp_learned(q, k, v):
    return (q @ T(k)).clamp(v.mean().detach() - 1, None) @ v


@case()
def abs_at_zero(q, k, v):
    return (q.round() @ T(k.round())).abs() @ v


@case()
def where_scores_positive(q, k, v):
    s = q.round() @ T(k.round())
    return torch.where(s > 0, s, 0.1 * s) @ v


@case()
def heaviside(q, k, v):
    s = (q.round() @ T(k.round())).detach()
    return torch.heaviside(s, torch.tensor(0.25, dtype=D)) @ v


@case()
def xlogy(q, k, v):
    return torch.xlogy(torch.sigmoid(q @ T(k)), torch.sigmoid(q @ T(k))) @ v


@case()
def copysign(q, k, v):
    return torch.copysign(torch.sigmoid(q @ T(k)), q @ T(k)) @ v


@case()
def hypot(q, k, v):
    return torch.hypot(q @ T(k), torch.ones((), dtype=D)) @ v


@case()
def atan2(q, k, v):
    s = q @ T(k)
    return torch.atan2(s, s + 1) @ v


@case()
def logit_eps(q, k, v):
    return torch.logit(torch.sigmoid(q @ T(k)), eps=0.2) @ v


@case()
def lerp(q, k, v):
    s = q @ T(k)
    return torch.lerp(s, s.tanh(), 0.3) @ v


@case()
def addcmul(q, k, v):
    s = q @ T(k)
    return torch.addcmul(s, s, s.tanh(), value=0.3) @ v


@case()
def add_alpha(q, k, v):
    s = q @ T(k)
    return torch.add(s, s.tanh(), alpha=-2) @ v


@case()
def rsub(q, k, v):
    return torch.rsub(q @ T(k), 1, alpha=3).relu() @ v


@case()
def sinc_frac(q, k, v):
    return torch.sinc(q @ T(k)).frac() @ v


@case(flat)
def baddbmm(q, k, v):
    return torch.baddbmm(v, F.silu(q @ T(k)), v, beta=0.5, alpha=2)


@case(flat)
def baddbmm_scores(q, k, v):
    return F.silu(torch.baddbmm(torch.ones(1, 5, 5, dtype=D), q, T(k), beta=0.5, alpha=2)) @ v


@case(flat)
def baddbmm_beta0_nan(q, k, v):
    return (
        F.silu(
            torch.baddbmm(torch.full((1, 5, 5), float("nan"), dtype=D), q, T(k), beta=0, alpha=2)
        )
        @ v
    )


@case(flat)
def baddbmm_empty_out(q, k, v):
    return F.silu(torch.baddbmm(torch.empty(2, 5, 5, dtype=D), q, T(k), beta=0, alpha=0.125)) @ v


@case(flat)
def addbmm_sum(q, k, v):
    return torch.addbmm(torch.ones(5, 4, dtype=D), F.silu(q @ T(k)), v, beta=2, alpha=0.5)


@case(lambda: tuple(x[0, 0].detach().clone().requires_grad_() for x in qkv()))
def addmm_2d(q, k, v):
    return torch.addmm(v, F.silu(q @ k.t()), v, beta=-1, alpha=0.3)


@case(lambda: tuple(x[0, 0].detach().clone().requires_grad_() for x in qkv()))
def addmm_bias_row(q, k, v):
    return F.relu(torch.addmm(torch.arange(5.0, dtype=D), q, k.t())) @ v


@case(lambda: tuple(x[0, 0].detach().clone().requires_grad_() for x in qkv()))
def linear_2d(q, k, v):
    return F.linear(F.silu(F.linear(q, k)), v.t())


@case(lambda: tuple(x[0, 0].detach().clone().requires_grad_() for x in qkv()))
def linear_2d_bias(q, k, v):
    return F.linear(
        F.silu(F.linear(q, k, torch.arange(5.0, dtype=D))), v.t(), torch.ones(4, dtype=D)
    )


@case(lambda: tuple(x[0, 0].detach().clone().requires_grad_() for x in qkv()))
def addmv(q, k, v):
    return torch.mv(F.silu(q @ k.t()), v[:, 0])


@case()
def einsum_odd(q, k, v):
    return (
        torch.einsum("zxcv,zxbv->zbcx", q, k).relu().einsum
        if False
        else torch.einsum("zbcx,zxbd->xzdc", torch.einsum("zxcv,zxbv->zbcx", q, k).relu(), v)
    )


@case()
def einsum_diag(q, k, v):
    return torch.einsum("aacd,aaed->ace", q, k).relu() @ v[:, 0]


@case()
def einsum_head_sum(q, k, v):
    return torch.einsum("bhqd,bhkd->bqk", q, k).relu() @ v[:, 0]


@case()
def einsum_out_head_sum(q, k, v):
    return torch.einsum("bhqk,bhkd->bqd", torch.einsum("bhqd,bhkd->bhqk", q, k).relu(), v)


@case()
def einsum_cross_heads(q, k, v):
    return torch.einsum("bhqgk,bgkd->bhqd", torch.einsum("bhqd,bgkd->bhqgk", q, k).relu(), v)


@case()
def einsum_three(q, k, v):
    return torch.einsum("bhqk,bhkd,bhqd->bhqd", torch.einsum("bhqd,bhkd->bhqk", q, k).relu(), v, q)


@case()
def einsum_broadcast(q, k, v):
    return torch.einsum(
        "...qk,...kd->...dq", torch.einsum("...qd,...kd->...qk", q, k[:, :1]).relu(), v
    )


@case()
def einsum_implicit(q, k, v):
    return torch.einsum("bhqk,bhkd", torch.einsum("bhqd,bhkd->bhqk", q, k).relu(), v)


@case()
def tensordot(q, k, v):
    s = torch.tensordot(q[:, 0], k[0, 0], ([2], [1])).relu()
    return torch.tensordot(s, v[0, 0], 1)


@case()
def tensordot_allheads(q, k, v):
    s = torch.tensordot(q, k, ([3], [3])).relu()
    return torch.tensordot(s, v, ([3, 4, 5], [0, 1, 2]))


@case()
def mul_sum_spelling(q, k, v):
    s = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1).tanh()
    return (s.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2)


@case()
def bilinear(q, k, v):
    w = torch.randn(5, 4, 4, dtype=D)
    s = F.bilinear(q, q, w).relu()
    return s @ v


@case()
def inner(q, k, v):
    return torch.inner(torch.inner(q[0, 0], k[0, 0]).relu(), v[0, 0].t())


@case()
def cdist_scores(q, k, v):
    return torch.exp(-torch.cdist(q, k)) @ v


@case()
def chain_matmul(q, k, v):
    return torch.linalg.multi_dot([F.relu(q[0, 0] @ k[0, 0].t()), v[0, 0], k[0, 0].t()])


@case()
def vecdot(q, k, v):
    return torch.linalg.vecdot(
        torch.linalg.vecdot(q.unsqueeze(-2), k.unsqueeze(-3)).relu().unsqueeze(-2),
        v.transpose(-1, -2).unsqueeze(-3),
    )


@case()
def kron_like(q, k, v):
    return F.relu(q @ T(k)).reshape(4, 25) @ v.reshape(4, 20).t().repeat(7, 1)[:25]


@case()
def reshape_mixes(q, k, v):
    return F.relu(q @ T(k)).reshape(2, 2, 5, 5).permute(0, 1, 3, 2).reshape(2, 2, 5, 5) @ v


@case()
def reshape_heads_mix(q, k, v):
    return F.relu(q @ T(k)).reshape(2, 10, 5) @ v[:, 0]


@case()
def view_heads_wrong(q, k, v):
    return F.relu((q @ T(k)).permute(1, 0, 2, 3).reshape(2, 2, 5, 5)) @ v


@case()
def weights_sliced(q, k, v):
    return F.relu(q @ T(k))[..., 1:, :-1] @ v[..., 1:, :]


@case()
def weights_strided_slice(q, k, v):
    return F.relu(q @ T(k))[..., ::2, ::2] @ v[..., ::2, :]


@case()
def weights_flipped(q, k, v):
    return F.relu(q @ T(k)).flip(-1) @ v


@case()
def weights_rolled(q, k, v):
    return F.relu(q @ T(k)).roll(1, -1) @ v


@case()
def weights_padded(q, k, v):
    return F.pad(torch.sigmoid(q @ T(k)), (1, 0)) @ F.pad(v, (0, 0, 1, 0), value=2.0)


@case()
def scores_padded(q, k, v):
    return torch.sigmoid(F.pad(q @ T(k), (1, 0))) @ F.pad(v, (0, 0, 1, 0), value=2.0)


@case()
def scores_cat_sink(q, k, v):
    s = torch.cat([torch.zeros(2, 2, 5, 1, dtype=D), q @ T(k)], -1)
    return torch.sigmoid(s)[..., 1:] @ v


@case()
def memory_tokens(q, k, v):
    return F.relu(q @ T(torch.cat([k, k.mean(-2, keepdim=True)], -2))) @ torch.cat(
        [v, torch.zeros_like(v[..., :1, :])], -2
    )


@case()
def rel_shift(q, k, v):
    s = q @ T(k)
    s = F.pad(s, (1, 0)).view(2, 2, 6, 5)[:, :, 1:].view(2, 2, 5, 5)
    return F.relu(s) @ v


@case()
def index_select_keys(q, k, v):
    i = torch.tensor([4, 0, 0, 2])
    return F.relu(q @ T(k[..., i, :])) @ v[..., i, :]


@case()
def index_weights(q, k, v):
    i = torch.tensor([4, 0, 0, 2])
    return F.relu(q @ T(k))[..., i] @ v[..., i, :]


@case()
def boolean_index_keys(q, k, v):
    i = torch.tensor([True, False, True, True, False])
    return F.relu(q @ T(k[..., i, :])) @ v[..., i, :]


@case()
def gqa_repeat(q, k, v):
    return F.relu(q @ T(k[:, :1].repeat_interleave(2, 1))) @ v[:, :1].repeat_interleave(2, 1)


@case(
    lambda: (
        torch.randn(2, 4, 5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 5, 4, dtype=D, requires_grad=True),
    )
)
def gqa_tile_vs_interleave(q, k, v):
    return F.relu(q @ T(k.repeat(1, 2, 1, 1))) @ v.repeat_interleave(2, 1)


@case(
    lambda: (
        torch.randn(2, 4, 5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 5, 4, dtype=D, requires_grad=True),
    )
)
def gqa_expand(q, k, v):
    q = q.view(2, 2, 2, 5, 4)
    return (F.relu(q @ T(k).unsqueeze(2)) @ v.unsqueeze(2).expand(2, 2, 2, 5, 4)).reshape(
        2, 4, 5, 4
    )


@case(
    lambda: (
        torch.randn(2, 4, 5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 5, 4, dtype=D, requires_grad=True),
    )
)
def gqa_transposed_groups(q, k, v):
    q = q.view(2, 2, 2, 5, 4)
    return (F.relu(q @ T(k).unsqueeze(1)) @ v.unsqueeze(1)).reshape(2, 4, 5, 4)


@case(
    lambda: (
        torch.randn(2, 4, 5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 5, 4, dtype=D, requires_grad=True),
    )
)
def gqa_mixed(q, k, v):
    w = F.relu(q @ T(k.repeat_interleave(2, 1)))
    return (w.view(2, 2, 2, 5, 5) @ v.unsqueeze(2)).sum(2)


@case()
def loop_heads(q, k, v):
    return torch.stack([F.relu(q[:, i] @ T(k[:, i])) @ v[:, i] for i in range(2)], 1)


@case()
def loop_chunks_acc(q, k, v):
    o = 0
    for s in (slice(0, 2), slice(2, 5)):
        o = o + F.relu(q @ T(k[..., s, :])) @ v[..., s, :]
    return o


@case()
def loop_chunks_into(q, k, v):
    o = torch.zeros_like(v)
    for s in (slice(0, 2), slice(2, 5)):
        o[..., s, :] += F.relu(q[..., s, :] @ T(k)) @ v
    return o


@case()
def loop_recurrent(q, k, v):
    for _ in range(3):
        v = F.silu(q @ T(k)) @ v
    return v


@case()
def loop_recurrent_q(q, k, v):
    for _ in range(3):
        q = torch.tanh(q @ T(k)) @ v
    return q


# ---- batch 3
@case()
def vmap_all(q, k, v):
    return torch.vmap(lambda a, b, c: F.silu(a @ T(b)) @ c)(q, k, v)


@case()
def vmap_shared_kv(q, k, v):
    return torch.vmap(lambda a: F.silu(a @ T(k)) @ v)(q)


@case()
def vmap_out_dims(q, k, v):
    return torch.vmap(lambda a, b, c: F.silu(a @ T(b)) @ c, in_dims=(1, 1, 0), out_dims=2)(q, k, v)


@case()
def func_grad(q, k, v):
    return torch.func.grad(lambda a: (F.silu(a @ T(k)) @ v).sum())(q)


@case()
def func_grad_mixed(q, k, v):
    o = F.silu(q @ T(k)) @ v
    return torch.func.grad(lambda a: (F.silu(a @ T(k)) @ v).square().sum())(q) + o


@case()
def func_vjp(q, k, v):
    o, f = torch.func.vjp(lambda a: F.silu(a @ T(k)) @ v, q)
    return o, f(torch.ones_like(o))[0]


@case()
def func_jvp(q, k, v):
    return torch.func.jvp(lambda a: F.silu(a @ T(k)) @ v, (q,), (torch.ones_like(q),))[1]


@case()
def forward_ad(q, k, v):
    import torch.autograd.forward_ad as fa

    with fa.dual_level():
        d = fa.make_dual(q.detach(), torch.ones_like(q))
        return fa.unpack_dual(F.silu(d @ T(k.detach())) @ v.detach()).tangent


class Ste(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * 3


class Attn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return F.silu(q @ T(k)) @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v = ctx.saved_tensors
        return g * 2, g + k, None


@case()
def custom_ste(q, k, v):
    return Ste.apply(q @ T(k)) @ v


@case()
def custom_scale_grad(q, k, v):
    return torch.tanh(Scale.apply(q @ T(k))) @ v


@case()
def custom_whole(q, k, v):
    return Attn.apply(q, k, v)


@case()
def custom_on_key(q, k, v):
    return torch.tanh(q @ T(Scale.apply(k))) @ v


@case()
def hook_on_weights(q, k, v):
    w = torch.tanh(q @ T(k))
    w.register_hook(lambda g: g * 5)
    return w @ v


@case()
def hook_on_scores(q, k, v):
    w = q @ T(k)
    w.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return torch.tanh(w) @ v


@case()
def hook_on_output(q, k, v):
    w = torch.tanh(q @ T(k)) @ v
    w.register_hook(lambda g: g * 5)
    return w


@case()
def retain_grad_weights(q, k, v):
    w = torch.tanh(q @ T(k))
    w.retain_grad()
    return w @ v


@case()
def checkpointed(q, k, v):
    return torch.utils.checkpoint.checkpoint(
        lambda a, b, c: F.silu(a @ T(b)) @ c, q, k, v, use_reentrant=False
    )


@case()
def checkpointed_dropout(q, k, v):
    return torch.utils.checkpoint.checkpoint(
        lambda a, b, c: F.dropout(F.silu(a @ T(b)) @ c, 0.3), q, k, v, use_reentrant=False
    )


@case()
def checkpointed_weights(q, k, v):
    w = torch.utils.checkpoint.checkpoint(lambda a, b: F.silu(a @ T(b)), q, k, use_reentrant=False)
    return w @ v


@case(operands32)
def autocast_bf(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        return F.silu(q @ T(k)) @ v


@case(operands32)
def autocast_scores_only(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        s = q @ T(k)
    return F.silu(s).float() @ v


@case(operands32)
def autocast_nested_off(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            s = q @ T(k)
        return F.silu(s) @ v


@case(operands32)
def autocast_float_island(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        s = q @ T(k)
        w = F.silu(s.float()) / 5
        return w @ v


@case()
def autocast_double(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        return F.silu(q @ T(k)) @ v


@case(operands32)
def default_dtype_double(q, k, v):
    torch.set_default_dtype(torch.float64)
    try:
        return F.silu(q @ T(k) * torch.tensor(0.1)) @ v
    finally:
        torch.set_default_dtype(torch.float32)


@case(operands32)
def arange_mask_promotes(q, k, v):
    i = torch.arange(5, dtype=torch.float64)
    return F.relu(q @ T(k)).double() * i @ v.double()


@case(operandsbf)
def bf_scalar_tensor_bias(q, k, v):
    return F.relu(q @ T(k) + torch.tensor(0.1)) @ v


@case(operandsbf)
def bf_times_int_mask(q, k, v):
    return (F.relu(q @ T(k)) * torch.ones(5, 5, dtype=torch.int64).tril()) @ v


@case(operandsbf)
def bf_float_mask_cast(q, k, v):
    return (F.relu(q @ T(k)) * torch.ones(5, 5).tril()).bfloat16() @ v


@case(operandsbf)
def bf_scores_float(q, k, v):
    return F.relu((q @ T(k)).float() * 100).bfloat16() @ v


@case(operandsbf)
def bf_big_scores_half(q, k, v):
    return torch.sigmoid(((q * 300) @ T(k * 300)).half()).bfloat16() @ v


@case(lambda: tuple(x.requires_grad_() for x in qkv(dtype=torch.float16)))
def half_overflow(q, k, v):
    return torch.sigmoid((q * 300) @ T(k * 300) * 1e-4) @ v


@case(lambda: tuple(x.requires_grad_() for x in qkv(dtype=torch.float16)))
def half_square_overflow(q, k, v):
    return (F.relu(q * 20 @ T(k * 20)).square() * 1e-4) @ v


class Mod(torch.nn.Module):
    def __init__(s, f):
        super().__init__()
        torch.manual_seed(3)
        s.f = f
        s.l = torch.nn.Linear(4, 4).double()
        s.g = torch.nn.Parameter(torch.tensor(0.5, dtype=D))
        s.n = 0
        s.register_buffer("c", torch.zeros((), dtype=torch.int64))
        s.register_buffer("run", torch.ones(5, 5, dtype=D))
        s.register_buffer("m", torch.ones(5, 5, dtype=torch.bool).tril())

    def forward(s, q, k, v):
        return s.f(s, q, k, v)


def module(f):
    m = Mod(f)
    m.__name__ = f.__name__
    CASES.append((m, operands))
    return f


@module
def mod_counter(s, q, k, v):
    s.c += 1
    return F.silu(s.l(q) @ T(s.l(k)) * s.g) @ s.l(v) * s.c


@module
def mod_running_bias(s, q, k, v):
    o = torch.sigmoid(q @ T(k) + s.run) @ v
    s.run.mul_(0.9).add_(0.1)
    return o


@module
def mod_running_between(s, q, k, v):
    w = torch.sigmoid(q @ T(k)) * s.run
    with torch.no_grad():
        s.run = s.run * 0.5
    return w @ v


@module
def mod_running_stats(s, q, k, v):
    w = torch.sigmoid(q @ T(k))
    with torch.no_grad():
        s.run.copy_(w.mean((0, 1)))
    return w @ v


@module
def mod_mask_replaced(s, q, k, v):
    s.m = s.m.flip(0)
    return (F.relu(q @ T(k)) * s.m) @ v


@module
def mod_param_inplace(s, q, k, v):
    with torch.no_grad():
        s.g.mul_(2)
    return F.silu(q @ T(k) * s.g) @ v


@module
def mod_param_inplace_between(s, q, k, v):
    x = F.silu(q @ T(k) + s.g.detach())
    with torch.no_grad():
        s.g.mul_(2)
    return x @ v + s.g


@module
def mod_python_state(s, q, k, v):
    s.n += 1
    return F.silu(q @ T(k) * s.n) @ v


@module
def mod_tied(s, q, k, v):
    return F.silu(s.l(q) @ T(s.l(q))) @ s.l(q) @ s.l.weight


@module
def mod_weight_as_key(s, q, k, v):
    return F.relu(q @ s.l.weight.t()) @ s.l.weight


@module
def mod_hook(s, q, k, v):
    h = s.l.register_forward_hook(lambda m, i, o: o * 2)
    o = F.silu(q @ T(s.l(k))) @ v
    h.remove()
    return o


@case(lambda: tuple(x.requires_grad_() for x in qkv(n=0)))
def empty_rows(q, k, v):
    return torch.sigmoid(q @ T(k)) @ v


@case(
    lambda: (
        torch.randn(2, 2, 5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 0, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 0, 4, dtype=D, requires_grad=True),
    )
)
def empty_keys(q, k, v):
    return torch.sigmoid(q @ T(k)) @ v


@case(
    lambda: (
        torch.randn(2, 2, 5, 0, dtype=D, requires_grad=True),
        torch.randn(2, 2, 3, 0, dtype=D, requires_grad=True),
        torch.randn(2, 2, 3, 4, dtype=D, requires_grad=True),
    )
)
def empty_depth(q, k, v):
    return torch.sigmoid(q @ T(k)) @ v


@case(
    lambda: (
        torch.randn(2, 2, 5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 3, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 3, 0, dtype=D, requires_grad=True),
    )
)
def empty_value(q, k, v):
    return torch.sigmoid(q @ T(k)) @ v


@case(lambda: tuple(x.requires_grad_() for x in qkv(b=0)))
def empty_batch(q, k, v):
    return torch.sigmoid(q @ T(k)) @ v


@case(lambda: tuple(x.requires_grad_() for x in qkv(n=1)))
def one_token(q, k, v):
    return torch.sigmoid(q @ T(k)) @ v


@case(lambda: tuple(x.requires_grad_() for x in qkv(n=1, d=1)))
def one_token_one_depth(q, k, v):
    return torch.sigmoid(q @ k) @ v


@case(
    lambda: (
        torch.randn(2, 2, 1, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 5, 4, dtype=D, requires_grad=True),
    )
)
def one_query_bias_broadcasts_rows(q, k, v):
    return torch.sigmoid(q @ T(k) + torch.arange(3, dtype=D)[:, None]) @ v


@case(
    lambda: (
        torch.randn(2, 2, 5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 1, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 3, 4, dtype=D, requires_grad=True),
    )
)
def one_key_broadcasts(q, k, v):
    return torch.sigmoid(q @ T(k) + torch.arange(3, dtype=D)) @ v


@case(
    lambda: (
        torch.randn(2, 2, 5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 1, 4, dtype=D, requires_grad=True),
        torch.randn(2, 2, 3, 4, dtype=D, requires_grad=True),
    )
)
def one_key_expanded(q, k, v):
    return torch.sigmoid(q @ T(k)).expand(2, 2, 5, 3) @ v


@case(
    lambda: (
        torch.randn(1, 2, 5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 1, 5, 4, dtype=D, requires_grad=True),
        torch.randn(3, 1, 1, 5, 4, dtype=D, requires_grad=True),
    )
)
def broadcast_batches(q, k, v):
    return torch.sigmoid(q @ T(k)) @ v


@case(
    lambda: (
        torch.randn(4, dtype=D, requires_grad=True),
        torch.randn(2, 5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 5, 4, dtype=D, requires_grad=True),
    )
)
def vector_query(q, k, v):
    return (torch.sigmoid(q @ T(k)).unsqueeze(-2) @ v).squeeze(-2)


@case(
    lambda: (
        torch.randn(5, 4, dtype=D, requires_grad=True),
        torch.randn(2, 5, 4, dtype=D, requires_grad=True),
        torch.randn(5, dtype=D, requires_grad=True),
    )
)
def vector_value(q, k, v):
    return torch.sigmoid(q @ T(k)) @ v


def naninf():
    q, k, v = qkv()
    q[0, 0, 0, 0] = float("nan")
    k[0, 1, 1, 1] = float("inf")
    v[1, 1, 2, 2] = float("inf")
    v[1, 0, 2, 2] = float("nan")
    return tuple(x.requires_grad_() for x in (q, k, v))


@case(naninf)
def nan_plain(q, k, v):
    return torch.sigmoid(q @ T(k)) @ v


@case(naninf)
def nan_relu(q, k, v):
    return F.relu(q @ T(k)) @ v


@case(naninf)
def nan_where(q, k, v):
    s = q @ T(k)
    return torch.where(torch.isnan(s), 0.0, s) @ v


@case(naninf)
def nan_to_num(q, k, v):
    return torch.nan_to_num(q @ T(k), posinf=1.0) @ v


@case(naninf)
def nan_ones(q, k, v):
    return ((q @ T(k)) ** 0) @ v


@case(naninf)
def nan_times_zero(q, k, v):
    return ((q @ T(k)) * 0) @ v


@case(naninf)
def nan_eq_self(q, k, v):
    s = q @ T(k)
    return ((s == s).to(D) + s.detach() * 0) @ v


@case(naninf)
def nan_clamp(q, k, v):
    return (q @ T(k)).clamp(0, 1) @ v


@case(naninf)
def nan_fmax(q, k, v):
    return torch.fmax(q @ T(k), torch.zeros((), dtype=D)) @ v


@case(naninf)
def nan_minmax(q, k, v):
    return (
        torch.minimum(torch.maximum(q @ T(k), torch.zeros((), dtype=D)), torch.ones((), dtype=D))
        @ v
    )


@case(naninf)
def nan_sub_self(q, k, v):
    s = q @ T(k)
    return (s - s) @ v


@case(naninf)
def nan_ternary_not(q, k, v):
    s = q @ T(k)
    return torch.where(~(s <= 0), s, 0.0) @ v


@case()
def bias_inf_times_zero(q, k, v):
    b = torch.full((5, 5), float("inf"), dtype=D).triu(1)
    b[b != b] = 0
    return torch.sigmoid(q @ T(k) - b) @ v


@case()
def bias_neg_inf_relu(q, k, v):
    b = torch.zeros(5, 5, dtype=D).masked_fill(torch.ones(5, 5).triu(1) > 0, float("-inf"))
    return F.relu(q @ T(k) + b).square() @ v


@case()
def bias_neg_inf_exp(q, k, v):
    b = torch.zeros(5, 5, dtype=D).masked_fill(torch.ones(5, 5).triu(1) > 0, float("-inf"))
    return torch.exp(q @ T(k) + b) @ v


@case()
def bias_neg_inf_softplus(q, k, v):
    b = torch.zeros(5, 5, dtype=D).masked_fill(torch.ones(5, 5).triu(1) > 0, float("-inf"))
    return F.softplus(q @ T(k) + b) @ v


@case()
def bias_neg_inf_gelu(q, k, v):
    b = torch.zeros(5, 5, dtype=D).masked_fill(torch.ones(5, 5).triu(1) > 0, float("-inf"))
    return F.gelu(q @ T(k) + b) @ v


@case()
def bias_neg_inf_silu_mul(q, k, v):
    b = torch.zeros(5, 5, dtype=D).masked_fill(torch.ones(5, 5).triu(1) > 0, float("-inf"))
    s = q @ T(k) + b
    return (s * torch.sigmoid(s)) @ v


@case()
def cond_activation(q, k, v):
    return torch.cond(
        q.sum() > 0,
        lambda a, b, c: F.relu(a @ T(b)) @ c,
        lambda a, b, c: torch.tanh(a @ T(b)) @ c,
        (q, k, v),
    )


@case()
def cond_weights(q, k, v):
    s = q @ T(k)
    w = torch.cond(s.sum() > 0, lambda x: F.relu(x), lambda x: torch.tanh(x), (s,))
    return w @ v


@case()
def cond_value_only(q, k, v):
    w = F.relu(q @ T(k))
    return torch.cond(q.sum() > 0, lambda x, y: x @ y, lambda x, y: x @ (y * 2), (w, v))


@case(nograd_ops)
def hop_map(q, k, v):
    from torch._higher_order_ops.map import map as hmap

    return (
        hmap(lambda a, b, c: F.silu(a @ T(b)) @ c, (q, k, v))
        if False
        else hmap(lambda a, b: F.silu(a @ T(b)) @ b, q, k[0])
    )


@case()
def hop_scan(q, k, v):
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, x: (c + 1, F.silu(x @ T(x)) @ x + c), torch.zeros(2, 5, 4, dtype=D), q)[1]


@case(nograd_ops)
def hop_while(q, k, v):
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, F.silu(x @ T(k)) @ v), (torch.tensor(0), q)
    )[1]


@case()
def graph_break(q, k, v):
    w = F.silu(q @ T(k))
    torch._dynamo.graph_break()
    return w @ v


@case()
def printed_scores(q, k, v):
    s = q @ T(k)
    if s.sum().item() > 0:
        return F.relu(s) @ v
    return torch.tanh(s) @ v


@case()
def output_written_after(q, k, v):
    o = F.silu(q @ T(k)) @ v
    p = o.transpose(1, 2)
    p.add_(1)
    return o, p.reshape(2, 5, 8)


@case()
def output_detached_written(q, k, v):
    o = F.silu(q @ T(k)) @ v
    o.detach().mul_(2)
    return o


@case()
def output_data_written(q, k, v):
    o = F.silu(q @ T(k)) @ v
    o.data.zero_()
    return o


@case()
def operand_data_written(q, k, v):
    u = v.clone()
    o = torch.tanh(q @ T(k)) @ u
    u.data.zero_()
    return o


@case()
def operand_detached_written(q, k, v):
    u = v * 2
    o = torch.tanh(q @ T(k)) @ u
    u.detach_()
    return o


@case()
def requires_grad_inside(q, k, v):
    u = v.detach().requires_grad_()
    o = torch.tanh(q @ T(k)) @ u
    return o


@case()
def unused_scores_hooked(q, k, v):
    s = q @ T(k)
    o = torch.tanh(s) @ v
    return o, s.shape[0], s.numel()


@case()
def view_as_real(q, k, v):
    c = torch.view_as_complex(q.reshape(2, 2, 5, 2, 2)) * torch.polar(
        torch.ones(5, 2, dtype=D), torch.arange(10.0, dtype=D).view(5, 2)
    )
    q = torch.view_as_real(c).flatten(-2)
    return F.silu(q @ T(k)) @ v


@case()
def out_stride(q, k, v):
    o = (F.silu(q @ T(k)) @ v).transpose(1, 2)
    return o.stride(), o.is_contiguous(), o.contiguous().view(2, 5, 8)


@case()
def version_counter(q, k, v):
    o = F.silu(q @ T(k)) @ v
    return o, o._version, o.is_leaf, o.requires_grad


@case(lambda: qkv())
def same_object_mutated(q, k, v):
    a = q.clone()
    b = a.view(2, 2, 20)
    w = F.silu(a @ T(k))
    b.zero_()
    return w @ (v + a)


# ---- batch 4
def jag(off=(0, 2, 5, 9), g=False, d=4):
    def mk():
        o = torch.tensor(off)
        n = 9
        return tuple(torch.randn(n, d, dtype=D).requires_grad_(g) for _ in range(3)) + (o,)

    return mk


def pad(x, o, n=5, p=0.0):
    return torch.ops.aten._jagged_to_padded_dense_forward(x, [o], [n], p)


def unpad(x, o, total):
    return torch.ops.aten._padded_dense_to_jagged_forward(x, [o], total)


@case(jag())
def jag_plain(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    return unpad(F.silu(a @ T(b)) @ c, o, 9)


@case(jag())
def jag_sigmoid(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    return unpad(torch.sigmoid(a @ T(b)) @ c, o, 9)


@case(jag())
def jag_value_padding_one(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o, p=1.0)
    return unpad(torch.sigmoid(a @ T(b)) @ c, o, 9)


@case(jag())
def jag_key_padding_one(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o, p=1.0), pad(v, o)
    return unpad(torch.sigmoid(a @ T(b)) @ c, o, 9)


@case(jag())
def jag_short_keys(q, k, v, o):
    a, b, c = pad(q, o, 5), pad(k, o, 3), pad(v, o, 3)
    return unpad(torch.sigmoid(a @ T(b)) @ c, o, 9)


@case(jag())
def jag_bias_after(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    return unpad(torch.sigmoid(a @ T(b)) @ c + 1, o, 9)


@case(jag())
def jag_value_plus_one(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o) + 1
    return unpad(torch.sigmoid(a @ T(b)) @ c, o, 9)


@case(jag())
def jag_value_exp(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o).exp()
    return unpad(torch.sigmoid(a @ T(b)) @ c, o, 9)


@case(jag())
def jag_padded_returned(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    p = torch.sigmoid(a @ T(b)) @ c
    return unpad(p, o, 9), p.sum()


@case(jag())
def jag_norm_between(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    p = torch.sigmoid(a @ T(b)) @ c
    p = p - p.mean((0, 1), keepdim=True)
    return unpad(p, o, 9)


@case(jag())
def jag_layernorm_between(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    p = torch.sigmoid(a @ T(b)) @ c
    return unpad(F.layer_norm(p, (4,)), o, 9)


@case(lambda: jag()() + (torch.tensor([0, 3, 6, 9]),))
def jag_other_offsets(q, k, v, o, o2):
    a, b, c = pad(q, o), pad(k, o2), pad(v, o2)
    return unpad(torch.sigmoid(a @ T(b)) @ c, o, 9)


@case(lambda: jag()() + (torch.tensor([0, 3, 6, 9]),))
def jag_other_offsets_v(q, k, v, o, o2):
    a, b, c = pad(q, o), pad(k, o), pad(v, o2)
    return unpad(torch.sigmoid(a @ T(b)) @ c, o, 9)


@case(lambda: jag()() + (torch.tensor([0, 3, 6, 9]),))
def jag_other_offsets_out(q, k, v, o, o2):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    return unpad(torch.sigmoid(a @ T(b)) @ c, o2, 9)


@case(jag((0, 0, 5, 9)))
def jag_empty_sequence(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    return unpad(torch.sigmoid(a @ T(b)) @ c, o, 9)


@case(jag())
def jag_offsets_written(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    o[1] = 3
    return unpad(torch.sigmoid(a @ T(b)) @ c, o, 9)


@case(jag())
def jag_causal(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    i = torch.arange(5)
    return unpad((torch.sigmoid(a @ T(b)) * (i[:, None] >= i)) @ c, o, 9)


@case(jag())
def jag_mask_lengths(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    i = torch.arange(5)
    l = o[1:] - o[:-1]
    return unpad((torch.sigmoid(a @ T(b)) * (i < l[:, None, None] - 1)) @ c, o, 9)


@case(jag())
def jag_bias_positions_end(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    i = torch.arange(5).flip(0)
    return unpad(torch.sigmoid(a @ T(b) + i.to(D)) @ c, o, 9)


@case(jag())
def jag_scale_batch(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    return unpad(torch.sigmoid(a @ T(b)) / (o[1:] - o[:-1])[:, None, None] @ c, o, 9)


@case(jag())
def jag_flip_keys(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o).flip(1), pad(v, o).flip(1)
    return unpad(torch.sigmoid(a @ T(b)) @ c, o, 9)


@case(jag())
def jag_roll_queries(q, k, v, o):
    a, b, c = pad(q, o).roll(1, 1), pad(k, o), pad(v, o)
    return unpad(torch.sigmoid(a @ T(b)) @ c, o, 9)


@case(jag())
def jag_manual_index(q, k, v, o):
    l = o[1:] - o[:-1]
    i = torch.arange(5)
    ix = (o[:-1, None] + i).clamp(max=8)
    m = i < l[:, None]
    a, b, c = q[ix], k[ix], v[ix]
    return ((F.silu(a @ T(b)) * m[:, None]) @ c) * m[..., None]


@case(jag())
def jag_manual_scatter(q, k, v, o):
    l = o[1:] - o[:-1]
    i = torch.arange(5)
    m = i < l[:, None]
    z = torch.zeros(3, 5, 4, dtype=D)
    a, b, c = (z.masked_scatter(m[..., None], x) for x in (q, k, v))
    return (F.silu(a @ T(b)) @ c).masked_select(m[..., None]).view(9, 4)


@case(jag())
def jag_packed_segment(q, k, v, o):
    s = torch.searchsorted(o, torch.arange(9), right=True)
    return (torch.sigmoid(q @ k.t()) * (s[:, None] == s))[None] @ v


@case(jag())
def jag_nested(q, k, v, o):
    a, b, c = (
        torch.nested.nested_tensor_from_jagged(x, o, max_seqlen=5, min_seqlen=2) for x in (q, k, v)
    )
    a, b, c = (x.to_padded_tensor(0.0) for x in (a, b, c))
    return F.silu(a @ T(b)) @ c


@case(jag())
def jag_nested_matmul(q, k, v, o):
    return torch.stack(
        [
            (F.silu(a @ b.t()) @ c).sum(0)
            for a, b, c in zip(q.split([2, 3, 4]), k.split([2, 3, 4]), v.split([2, 3, 4]))
        ]
    )


@case(jag())
def jag_pad_scores(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    s = a @ T(b)
    l = o[1:] - o[:-1]
    i = torch.arange(5)
    s = s.masked_fill((i >= l[:, None])[:, None], -1e9)
    return unpad((F.elu(s) + 1) @ c, o, 9)


@case(
    lambda: (
        torch.randn(9, 8, dtype=D),
        torch.randn(9, 8, dtype=D),
        torch.randn(9, 8, dtype=D),
        torch.tensor([0, 2, 5, 9]),
    )
)
def jag_heads(q, k, v, o):
    a, b, c = (pad(x, o).view(3, 5, 2, 4).transpose(1, 2) for x in (q, k, v))
    return unpad((F.silu(a @ T(b)) @ c).transpose(1, 2).reshape(3, 5, 8), o, 9)


@case(
    lambda: (
        torch.randn(9, 8, dtype=D),
        torch.randn(9, 8, dtype=D),
        torch.randn(9, 8, dtype=D),
        torch.tensor([0, 2, 5, 9]),
    )
)
def jag_heads_wrong_order(q, k, v, o):
    a, b, c = (pad(x, o).view(3, 2, 5, 4) for x in (q, k, v))
    return unpad((F.silu(a @ T(b)) @ c).reshape(3, 5, 8), o, 9)


@case(lambda: (torch.randn(9, 24, dtype=D), torch.tensor([0, 2, 5, 9])))
def jag_qkv_together(x, o):
    a, b, c = (y.view(3, 5, 2, 4).transpose(1, 2) for y in pad(x, o).chunk(3, -1))
    return unpad((F.silu(a @ T(b)) @ c).transpose(1, 2).reshape(3, 5, 8), o, 9)


@case(jag())
def jag_total_smaller(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    return unpad(F.silu(a @ T(b)) @ c, o.clamp(max=7), 7)


@case(jag())
def jag_two_layers(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    x = unpad(F.silu(a @ T(b)) @ c, o, 9)
    p = pad(x, o)
    return unpad(torch.tanh(p @ T(p)) @ p, o, 9)


@case(jag())
def jag_grad_at_padding(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    p = F.silu(a @ T(b)) @ c
    return unpad(p, o, 9), a.sum() * c.sum()


@case(lambda: tuple(x.requires_grad_() for x in qkv()))
def sparse_mask(q, k, v):
    return (F.relu(q @ T(k)) * torch.eye(5).to_sparse().to_dense()) @ v


@case(lambda: tuple(x[0, 0].detach().requires_grad_() for x in qkv()))
def sparse_weights(q, k, v):
    return torch.sparse.mm(F.relu(q @ k.t()).detach().to_sparse(), v)


@case(lambda: tuple(x[0, 0].detach().requires_grad_() for x in qkv()))
def sparse_sampled(q, k, v):
    m = torch.eye(5, dtype=D).to_sparse_csr()
    return torch.sparse.sampled_addmm(m, q.detach(), k.detach().t(), beta=0.0).to_dense().relu() @ v


@case()
def value_is_function_of_scores(q, k, v):
    s = q @ T(k)
    return torch.tanh(s) @ (v + s.mean())


@case()
def value_is_scores(q, k, v):
    s = q @ T(k)
    return torch.tanh(s) @ s


@case()
def key_from_output(q, k, v):
    o = torch.tanh(q @ T(k)) @ v
    return torch.sigmoid(o @ T(o)) @ o


@case()
def weights_through_view_and_back(q, k, v):
    return torch.tanh((q @ T(k)).view(4, 25)).view(2, 2, 5, 5) @ v


@case()
def weights_square_reshape(q, k, v):
    return torch.tanh((q @ T(k)).view(2, 2, 25)).view(2, 2, 5, 5).mT @ v


@case()
def bias_on_flat_scores(q, k, v):
    return torch.tanh((q @ T(k)).view(4, 25) + torch.arange(25, dtype=D) / 10).view(2, 2, 5, 5) @ v


@case()
def bias_on_transposed_scores(q, k, v):
    return torch.tanh((q @ T(k)).mT + torch.arange(5, dtype=D)[:, None]).mT @ v


@case()
def bias_on_permuted_heads(q, k, v):
    return (
        torch.tanh((q @ T(k)).permute(0, 2, 3, 1) + torch.arange(2, dtype=D)).permute(0, 3, 1, 2)
        @ v
    )


@case()
def bias_swapped_batch_head(q, k, v):
    return (
        torch.tanh((q @ T(k)).transpose(0, 1) + torch.arange(2, dtype=D)[:, None, None]).transpose(
            0, 1
        )
        @ v
    )


@case()
def bias_swapped_not_back(q, k, v):
    return torch.tanh((q @ T(k)).transpose(0, 1) + torch.arange(2, dtype=D)[:, None, None]) @ v


@case()
def cumsum_weights(q, k, v):
    return torch.tanh(q @ T(k)).cumsum(-1) @ v


@case()
def softmax_over_heads(q, k, v):
    return (q @ T(k)).softmax(1) @ v


@case()
def sigmoid_minus_logn(q, k, v):
    import math

    return torch.sigmoid(q @ T(k) - math.log(k.shape[-2])) @ v


@case()
def conv_on_scores(q, k, v):
    return F.conv2d(q @ T(k), torch.ones(2, 2, 1, 1, dtype=D)).relu() @ v


@case()
def talking_heads(q, k, v):
    return torch.einsum("bhqk,hg->bgqk", q @ T(k), torch.ones(2, 2, dtype=D)).relu() @ v


@case()
def pool_on_scores(q, k, v):
    return F.max_pool2d(q @ T(k), 3, 1, 1).relu() @ v


@case()
def norm_on_scores(q, k, v):
    return F.layer_norm(q @ T(k), (5,)).relu() @ v


@case()
def group_norm_out(q, k, v):
    return F.layer_norm(F.relu(q @ T(k)) @ v, (4,))


@case()
def item_scale(q, k, v):
    return F.relu(q @ T(k) * q.detach().abs().max()) @ v


@case()
def std_scale(q, k, v):
    return F.relu(q @ T(k) / q.std()) @ v


@case()
def scale_from_scores(q, k, v):
    s = q @ T(k)
    return F.relu(s / s.std()) @ v


@case()
def scale_from_scores_detached(q, k, v):
    s = q @ T(k)
    return F.relu(s / s.detach().std()) @ v


@case()
def batched_scale(q, k, v):
    return F.relu(q @ T(k) * q.norm(dim=-1, keepdim=True)) @ v


@case()
def gate_output(q, k, v):
    return F.silu(q @ T(k)) @ v * torch.sigmoid(q)


@case()
def tensor_subclass_param(q, k, v):
    return F.silu(q @ T(torch.nn.Parameter(k.detach()))) @ v


@case()
def scores_two_branches_mask(q, k, v):
    s = q @ T(k)
    return torch.where(s > 0, s, torch.zeros(())) @ v


@case()
def where_int_branch(q, k, v):
    s = q @ T(k)
    return torch.where(s > 0, 1, 0).to(D) @ v


@case(operands32)
def where_double_branch(q, k, v):
    s = q @ T(k)
    return torch.where(s > 0, s, torch.zeros(5, 5, dtype=D)).float() @ v


@case(operands32)
def python_float_big(q, k, v):
    return torch.sigmoid((q @ T(k)) * 1e39 * 1e-39) @ v


@case(operands32)
def python_int_big(q, k, v):
    return torch.sigmoid((q @ T(k)) + 2**24 + 1 - 2**24) @ v


@case(operands32)
def round_trip_add(q, k, v):
    return ((q @ T(k)) + 1e6 - 1e6) @ v


@case(operands32)
def neg_zero(q, k, v):
    return (1 / ((q @ T(k)).relu() * -0.0)).clamp(-1, 1) @ v


@case(operands32)
def square_root_square(q, k, v):
    return (q @ T(k)).square().sqrt() @ v


@case(operands32)
def exp_overflow(q, k, v):
    s = q @ T(k) * 50
    return (torch.exp(s) / (1 + torch.exp(s))) @ v


@case(operands32)
def silu_by_exp(q, k, v):
    s = q @ T(k) * 50
    return (s / (1 + torch.exp(-s))) @ v


@case(operands32)
def double_island(q, k, v):
    return torch.sigmoid((q @ T(k)).double() * 1e-12 + 1e-12).float() @ v


@case(operands32)
def double_island2(q, k, v):
    return ((q @ T(k)).double() + 1e9 - 1e9).float() @ v


@case(operands32)
def value_cast(q, k, v):
    return (torch.sigmoid(q @ T(k)).double() @ v.double()).float()


@case(operands32)
def query_cast(q, k, v):
    return torch.sigmoid((q.double() @ T(k.double())).float()) @ v


@case(operands32)
def query_cast_half(q, k, v):
    return torch.sigmoid((q.bfloat16() @ T(k.bfloat16())).float()) @ v


@case(operandsbf)
def bf_query_float_matmul(q, k, v):
    return torch.sigmoid((q.float() @ T(k.float()))).bfloat16() @ v


@case(
    lambda: (
        torch.randn(2, 2, 5, 4, requires_grad=True),
        torch.randn(2, 2, 5, 4, requires_grad=True),
        torch.randn(2, 2, 5, 4, dtype=torch.bfloat16, requires_grad=True),
    )
)
def mixed_value_dtype(q, k, v):
    return torch.sigmoid(q @ T(k)).to(v.dtype) @ v


@case(
    lambda: (
        torch.randn(2, 2, 5, 4, requires_grad=True),
        torch.randn(2, 2, 5, 4, dtype=torch.bfloat16, requires_grad=True),
        torch.randn(2, 2, 5, 4, dtype=D, requires_grad=True),
    )
)
def mixed_all(q, k, v):
    return torch.sigmoid(q @ T(k).float()).double() @ v


@case(operands)
def arg_unused_grad(q, k, v):
    return torch.sigmoid(q @ T(k) * 0) @ v


@case(operands)
def zero_activation(q, k, v):
    return torch.zeros_like(q @ T(k)) @ v


@case(operands)
def const_activation(q, k, v):
    return (torch.sigmoid(q @ T(k)) > 0).to(D) @ v


@case(operands)
def sign_activation(q, k, v):
    return torch.sign(q @ T(k)) @ v


@case(operands)
def floor_activation(q, k, v):
    return torch.floor(q @ T(k)) @ v


@case(operands)
def bool_activation_int(q, k, v):
    return (q @ T(k) > 0).int().double() @ v


@case(operands)
def ones_like_activation(q, k, v):
    return torch.ones_like(q @ T(k)).tril() @ v


@case(operands)
def detached_query(q, k, v):
    return torch.sigmoid(q.detach() @ T(k)) @ v.detach()


@case(operands)
def detach_where(q, k, v):
    s = q @ T(k)
    return torch.where(s > 0, s, s.detach()) @ v


@case(operands)
def detach_add(q, k, v):
    s = q @ T(k)
    return (s + s.detach()) @ v


@case(operands)
def mul_detached_mask_param(q, k, v):
    g = torch.sigmoid(v[..., 0]).unsqueeze(-2)
    return (torch.relu(q @ T(k)) * g) @ v


@case(operands)
def bias_from_query(q, k, v):
    return torch.relu(q @ T(k) + q[..., :1]) @ v


@case(operands)
def bias_from_key_mean(q, k, v):
    return torch.relu(q @ T(k) - k.mean(-1).unsqueeze(-2)) @ v


@case(operands)
def sum_reduces_output(q, k, v):
    return (torch.relu(q @ T(k)) @ v).sum(-2), (torch.relu(k @ T(q)) @ v).amax(1)


# ---- batch 5
try:
    import fbgemm_gpu  # noqa: F401  registers torch.ops.fbgemm

    FB = hasattr(torch.ops.fbgemm, "jagged_to_padded_dense")
except Exception:
    FB = False


def fpad(x, o, n=5, p=0.0):
    return torch.ops.fbgemm.jagged_to_padded_dense(x, [o], [n], p)


def funpad(x, o, n=9):
    return torch.ops.fbgemm.dense_to_jagged(x, [o], n)[0]


def fj(off=(0, 2, 5, 9), d=4, dt=torch.int64, n=9):
    return lambda: (
        tuple(torch.randn(n, d, dtype=torch.float32, requires_grad=True) for _ in range(3))
        + (torch.tensor(off, dtype=dt),)
    )


def fcase(ops):
    return case(ops) if FB else (lambda f: f)


def fb_plain(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


for nm, op in {
    "plain": fj(),
    "int32": fj(dt=torch.int32),
    "empty": fj((0, 0, 5, 9)),
    "start2": fj((2, 4, 7, 9)),
    "end8": fj((0, 2, 5, 8)),
    "all_in_one": fj((0, 5, 5, 9)),
    "one_seq": fj((0, 9)),
    "too_long": fj((0, 0, 1, 9)),
    "backwards": fj((0, 5, 3, 9)),
}.items():

    def g(q, k, v, o):
        return fb_plain(q, k, v, o)

    g.__name__ = "fb_plain_" + nm
    fcase(op)(g)


@fcase(fj((0, 0, 1, 9)))
def fb_truncated(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(F.silu(a @ T(b)) @ c + 1, o)


@fcase(fj((0, 0, 1, 9)))
def fb_truncated_keys(q, k, v, o):
    a, b, c = fpad(q, o, 9), fpad(k, o, 3), fpad(v, o, 3)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(fj((0, 0, 1, 9)))
def fb_truncated_queries(q, k, v, o):
    a, b, c = fpad(q, o, 3), fpad(k, o, 9), fpad(v, o, 9)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(fj())
def fb_pad_one_v(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o, p=1.0)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(fj())
def fb_pad_nan_q(q, k, v, o):
    a, b, c = fpad(q, o, p=float("nan")), fpad(k, o), fpad(v, o)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(fj())
def fb_pad_inf_k(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o, p=float("inf")), fpad(v, o)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(fj())
def fb_pad_inf_k_masked(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o, p=float("inf")), fpad(v, o)
    l = o[1:] - o[:-1]
    return funpad((torch.sigmoid(a @ T(b)) * (torch.arange(5) < l[:, None, None])) @ c, o)


@fcase(fj())
def fb_value_shift(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o) - 0.5
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(fj())
def fb_value_shift_masked(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o) - 0.5
    l = o[1:] - o[:-1]
    return funpad((torch.sigmoid(a @ T(b)) * (torch.arange(5) < l[:, None, None])) @ c, o)


@fcase(fj())
def fb_value_sigmoid(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), torch.sigmoid(fpad(v, o))
    return funpad(torch.tanh(a @ T(b)) @ c, o)


@fcase(fj())
def fb_key_shift_tanh(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o) + 1, fpad(v, o)
    return funpad(torch.tanh(a @ T(b)) @ c, o)


@fcase(fj())
def fb_linear_value(q, k, v, o):
    w = torch.eye(4, dtype=torch.float32)
    a, b, c = fpad(q, o), fpad(k, o), F.linear(fpad(v, o), w, torch.ones(4, dtype=torch.float32))
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(lambda: fj()() + (torch.tensor([0, 3, 6, 9]),))
def fb_o2_kv(q, k, v, o, o2):
    a, b, c = fpad(q, o), fpad(k, o2), fpad(v, o2)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(lambda: fj()() + (torch.tensor([0, 3, 6, 9]),))
def fb_o2_v(q, k, v, o, o2):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o2)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(lambda: fj()() + (torch.tensor([0, 3, 6, 9]),))
def fb_o2_k(q, k, v, o, o2):
    a, b, c = fpad(q, o), fpad(k, o2), fpad(v, o)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(lambda: fj()() + (torch.tensor([0, 3, 6, 9]),))
def fb_o2_out(q, k, v, o, o2):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o2)


@fcase(lambda: fj()() + (torch.tensor([0, 2, 5, 9]),))
def fb_equal_offsets_other_tensor(q, k, v, o, o2):
    a, b, c = fpad(q, o), fpad(k, o2), fpad(v, o2)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o2)


@fcase(fj())
def fb_offsets_cloned(q, k, v, o):
    a, b = fpad(q, o), fpad(k, o)
    o2 = o.clone()
    o2[1] = 4
    c = fpad(v, o2)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(fj())
def fb_values_written(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    c.mul_(2)
    c[:, 0] = 1
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(fj())
def fb_padded_written_at_padding(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o).clone()
    c[0, -1] = 5.0
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(fj())
def fb_dropout_between(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(F.dropout(torch.sigmoid(a @ T(b)) @ c, 0.5), o)


@fcase(fj())
def fb_dropout_padded_value(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), F.dropout(fpad(v, o), 0.5)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(fj())
def fb_residual(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(torch.sigmoid(a @ T(b)) @ c + a, o)


@fcase(fj())
def fb_mean_between(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    p = torch.sigmoid(a @ T(b)) @ c
    return funpad(p - p.mean(1, keepdim=True), o), p.amax()


@fcase(fj())
def fb_cumsum_between(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad((torch.sigmoid(a @ T(b)) @ c).cumsum(1), o)


@fcase(fj())
def fb_padded_mean(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return (torch.sigmoid(a @ T(b)) @ c).mean(1)


@fcase(fj())
def fb_bias_rel(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    i = torch.arange(5)
    return funpad((torch.sigmoid(a @ T(b) + (i[:, None] - i).to(torch.float32)) / 5) @ c, o)


@fcase(fj())
def fb_bias_batch(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    l = (o[1:] - o[:-1])[:, None, None]
    i = torch.arange(5)
    return funpad((torch.sigmoid(a @ T(b)) * ((l - 1 - i)[:, :, :] >= i[:, None])) @ c, o)


@fcase(lambda: fj()() + (torch.randn(3, 5, 5, dtype=torch.float32, requires_grad=True),))
def fb_bias_padded_param(q, k, v, o, w):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(torch.sigmoid(a @ T(b) + w) @ c, o)


@fcase(lambda: fj()() + (torch.randn(9, 1, dtype=torch.float32, requires_grad=True),))
def fb_bias_jagged(q, k, v, o, w):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(torch.sigmoid(a @ T(b) + T(fpad(w, o))) @ c, o)


@fcase(lambda: fj()() + (torch.randn(9, 1, dtype=torch.float32, requires_grad=True),))
def fb_gate_jagged(q, k, v, o, w):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad((torch.sigmoid(a @ T(b)) * T(fpad(w, o, p=1.0))) @ c, o)


@fcase(
    lambda: (
        tuple(torch.randn(9, 8, dtype=torch.float32).requires_grad_() for _ in range(3))
        + (torch.tensor([0, 2, 5, 9]),)
    )
)
def fb_heads(q, k, v, o):
    a, b, c = (fpad(x, o).view(3, 5, 2, 4).transpose(1, 2) for x in (q, k, v))
    return funpad((F.silu(a @ T(b)) @ c).transpose(1, 2).reshape(3, 5, 8), o)


@fcase(
    lambda: (
        tuple(torch.randn(9, 8, dtype=torch.float32).requires_grad_() for _ in range(3))
        + (torch.tensor([0, 2, 5, 9]),)
    )
)
def fb_heads_wrong(q, k, v, o):
    a, b, c = (fpad(x, o).view(3, 2, 5, 4) for x in (q, k, v))
    return funpad((F.silu(a @ T(b)) @ c).reshape(3, 5, 8), o)


@fcase(
    lambda: (
        tuple(torch.randn(9, 8, dtype=torch.float32).requires_grad_() for _ in range(3))
        + (torch.tensor([0, 2, 5, 9]),)
    )
)
def fb_heads_interleaved(q, k, v, o):
    a, b, c = (fpad(x, o).view(3, 5, 4, 2).permute(0, 3, 1, 2) for x in (q, k, v))
    return funpad((F.silu(a @ T(b)) @ c).transpose(1, 2).reshape(3, 5, 8), o)


@fcase(
    lambda: (
        tuple(torch.randn(9, 2, 4, dtype=torch.float32).requires_grad_() for _ in range(3))
        + (torch.tensor([0, 2, 5, 9]),)
    )
)
def fb_heads_flat(q, k, v, o):
    a, b, c = (fpad(x.flatten(1), o).view(3, 5, 2, 4) for x in (q, k, v))
    w = F.silu(torch.einsum("bnhd,bmhd->bhnm", a, b))
    return funpad(torch.einsum("bhnm,bmhd->bnhd", w, c).flatten(2), o)


@fcase(fj())
def fb_twice(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    x = funpad(F.silu(a @ T(b)) @ c, o)
    p = fpad(x, o)
    return funpad(torch.tanh(p @ T(p)) @ p, o) + x


@fcase(fj())
def fb_no_unpad(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return F.silu(a @ T(b)) @ c


@fcase(fj())
def fb_no_unpad_sigmoid(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return torch.sigmoid(a @ T(b)) @ c


@fcase(fj())
def fb_only_kv(q, k, v, o):
    b, c = fpad(k, o), fpad(v, o)
    return torch.sigmoid(q[:6].view(3, 2, 4) @ T(b)) @ c


@fcase(fj())
def fb_only_q(q, k, v, o):
    a = fpad(q, o)
    return funpad(torch.sigmoid(a @ T(k[:6].view(3, 2, 4))) @ v[:6].view(3, 2, 4), o)


@fcase(fj())
def fb_shared_k(q, k, v, o):
    a = fpad(q, o)
    return funpad(torch.sigmoid(a @ k.t()) @ v, o)


@fcase(fj())
def fb_row_mask_out(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    m = fpad(torch.ones(9, 1, dtype=torch.float32), o)
    return funpad((F.silu(a @ T(b)) * m * T(m)) @ c, o)


@fcase(fj())
def fb_mask_int(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    m = fpad(torch.ones(9, 1, dtype=torch.float32), o) > 0
    return funpad((F.silu(a @ T(b)) * (m ^ T(m)).logical_not()) @ c, o)


@fcase(fj())
def fb_q_norm(q, k, v, o):
    a, b, c = F.normalize(fpad(q, o), dim=1), fpad(k, o), fpad(v, o)
    return funpad(F.silu(a @ T(b)) @ c, o)


@fcase(fj())
def fb_v_layernorm(q, k, v, o):
    a, b, c = (
        fpad(q, o),
        fpad(k, o),
        F.layer_norm(
            fpad(v, o), (4,), torch.ones(4, dtype=torch.float32), torch.ones(4, dtype=torch.float32)
        ),
    )
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(fj())
def fb_softmaxed_values(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o).softmax(-1)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(fj())
def fb_value_div0(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    c = c / c.norm(dim=-1, keepdim=True)
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(fj())
def fb_scores_div0(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad((1 / (a @ T(b))) @ c, o)


@fcase(fj())
def fb_scores_log(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(torch.log((a @ T(b)).abs()) @ c, o)


@fcase(fj())
def fb_scores_sqrt_grad(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(torch.sqrt((a @ T(b)).abs()) @ c, o)


@fcase(fj())
def fb_scores_rsqrt_pos(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(((a @ T(b)).square() ** 0.25) @ c, o)


@fcase(fj())
def fb_offset_gradient_of_input(q, k, v, o):
    a, b, c = fpad(q * v, o), fpad(q + k, o), fpad(v, o)
    return funpad(F.silu(a @ T(b)) @ c, o), q.sum()


@fcase(fj())
def fb_unpad_total_from_shape(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(F.silu(a @ T(b)) @ c, o, q.shape[0])


@fcase(fj())
def fb_unpad_no_total(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return torch.ops.fbgemm.dense_to_jagged(F.silu(a @ T(b)) @ c, [o])[0]


@fcase(fj())
def fb_unpad_bigger_total(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(F.silu(a @ T(b)) @ c, o, 9).sum(0)


@fcase(
    lambda: (
        tuple(torch.randn(9, 4, dtype=torch.float32, requires_grad=True) for _ in range(3))
        + (torch.tensor((0, 2, 5, 9)),)
    )
)
def fb_autocast(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    with torch.autocast("cpu", torch.bfloat16):
        p = torch.sigmoid(a @ T(b)) @ c
    return funpad(p.float(), o)


@fcase(fj())
def fb_elementwise_add(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    p = F.silu(a @ T(b)) @ c
    return torch.ops.fbgemm.jagged_dense_elementwise_add_jagged_output(q, [o], p)[0]


# ---- batch 6
def later(ops, change):
    def add(f):
        CASES.append(((f, change), ops))
        return f

    return add


def ng(f):
    def change(*a):
        with torch.no_grad():
            f(*a)

    return change


def only(*which, extra=()):
    return lambda: (
        tuple(x.requires_grad_(i in which) for i, x in enumerate(qkv())) + tuple(e() for e in extra)
    )


B55 = lambda: torch.randn(5, 5, dtype=D, requires_grad=True)
N55 = lambda: torch.randn(5, 5, dtype=D)


def att_bias(q, k, v, b):
    return torch.sigmoid(q @ T(k) + b) @ v


def att_gate(q, k, v, b):
    return (torch.sigmoid(q @ T(k)) * b) @ v


def att_fill(q, k, v, b):
    return torch.sigmoid(q @ T(k)).masked_fill(b > 0, 0.0) @ v


def att_where(q, k, v, b):
    return torch.where(b > 0, torch.tanh(q @ T(k)), 0.0) @ v


def att(q, k, v):
    return torch.tanh(q @ T(k)) @ v


def att_relu(q, k, v):
    return F.relu(q @ T(k)) @ v


def variant(f, name, ops, change):
    def g(*a):
        return f(*a)

    g.__name__ = name
    CASES.append(((g, change), ops))


QKV = (0, 1, 2)
variant(
    att_bias, "later_bias_grad_inplace", only(*QKV, extra=(B55,)), ng(lambda q, k, v, b: b.mul_(5))
)
variant(
    att_bias, "later_bias_grad_data", only(*QKV, extra=(B55,)), lambda q, k, v, b: b.data.mul_(5)
)
variant(att_bias, "later_bias_inplace", only(*QKV, extra=(N55,)), lambda q, k, v, b: b.mul_(5))
variant(att_bias, "later_bias_data", only(*QKV, extra=(N55,)), lambda q, k, v, b: b.data.mul_(5))
variant(att_gate, "later_gate_data", only(*QKV, extra=(N55,)), lambda q, k, v, b: b.data.mul_(5))
variant(att_gate, "later_gate_only_v", only(2, extra=(N55,)), lambda q, k, v, b: b.mul_(5))
variant(att_fill, "later_fill", only(*QKV, extra=(N55,)), lambda q, k, v, b: b.mul_(-5))
variant(att_where, "later_where", only(*QKV, extra=(N55,)), lambda q, k, v, b: b.mul_(-5))
variant(att, "later_only_v_change_q", only(2), lambda q, k, v: q.mul_(5))
variant(att, "later_only_v_change_k", only(2), lambda q, k, v: k.mul_(5))
variant(att, "later_only_v_change_v", only(2), ng(lambda q, k, v: v.mul_(5)))
variant(att, "later_only_q_change_q", only(0), ng(lambda q, k, v: q.mul_(5)))
variant(att, "later_only_q_change_q_data", only(0), lambda q, k, v: q.data.mul_(5))
variant(att, "later_only_k_change_k", only(1), ng(lambda q, k, v: k.mul_(5)))
variant(att, "later_only_k_change_k_data", only(1), lambda q, k, v: k.data.mul_(5))
variant(att, "later_all_change_q_data", only(*QKV), lambda q, k, v: q.data.mul_(5))
variant(att_relu, "later_all_change_v_data", only(*QKV), lambda q, k, v: v.data.mul_(5))
variant(att, "later_requires_grad_off", only(*QKV), lambda q, k, v: q.requires_grad_(False))


class P(torch.nn.Module):
    def __init__(s, learn=True):
        super().__init__()
        torch.manual_seed(4)
        s.b = torch.nn.Parameter(torch.randn(5, 5, dtype=D))
        s.k = torch.nn.Parameter(torch.randn(5, 4, dtype=D))
        s.w = torch.nn.Parameter(torch.randn(4, 4, dtype=D))
        s.i = 0


class StepInside(P):
    """bias changed by an optimizer-like step between output and backward, through .data"""

    def forward(s, q, k, v):
        o = torch.sigmoid(q @ T(k) + s.b) @ v
        s.b.data.mul_(3)
        return o


class StepInsideNoGrad(P):
    def forward(s, q, k, v):
        o = torch.sigmoid(q @ T(k) + s.b) @ v
        with torch.no_grad():
            s.b.mul_(3)
        return o


class StepInsideKey(P):
    def forward(s, q, k, v):
        o = torch.sigmoid(q.detach() @ s.k.t()) @ v
        with torch.no_grad():
            s.k.mul_(3)
        return o


for c in (StepInside, StepInsideNoGrad, StepInsideKey):
    m = c()
    m.__name__ = c.__name__
    CASES.append((m, operands))


@case()
def bias_ema_write_after(q, k, v):
    b = torch.zeros(5, 5, dtype=D)
    o = torch.sigmoid(q @ T(k) + b) @ v
    b += 1
    return o, b


@case()
def detached_output_alias(q, k, v):
    o = torch.tanh(q @ T(k)) @ v
    return o, o.detach(), o.view(-1)


@case()
def returns_input_views(q, k, v):
    o = torch.tanh(q @ T(k)) @ v
    return o, q, T(k), v.detach()


@later(nograd_ops, None) if False else case(nograd_ops)
def output_into_input(q, k, v):
    v.copy_(torch.tanh(q @ T(k)) @ v)
    return v * 2


@case(nograd_ops)
def input_iadd_output(q, k, v):
    q += torch.tanh(q @ T(k)) @ v
    return q


@case(nograd_ops)
def out_kwarg_input(q, k, v):
    torch.add(torch.tanh(q @ T(k)) @ v, 1, out=q)
    return q


@case(nograd_ops)
def einsum_into_slice(q, k, v):
    q[:, 0] = (torch.tanh(q @ T(k)) @ v)[:, 1]
    return q


@case(nograd_ops)
def swapped_in_place(q, k, v):
    w = torch.tanh(q @ T(k))
    q.copy_(v)
    v.copy_(w @ q)
    return w.sum() * 0 + v


@case(
    lambda: (
        tuple(
            x.requires_grad_()
            for x in (torch.randn(9, 2, 4), torch.randn(9, 2, 4), torch.randn(9, 2, 4))
        )
        + (torch.tensor([0, 2, 5, 9]),)
    )
)
def nested_padded_grad(q, k, v, o):
    a, b, c = (
        torch.nested.nested_tensor_from_jagged(x.flatten(1), o, max_seqlen=5, min_seqlen=2)
        .to_padded_tensor(0.0)
        .view(3, 5, 2, 4)
        .transpose(1, 2)
        for x in (q, k, v)
    )
    return F.silu(a @ T(b)) @ c


@case(
    lambda: (
        tuple(x.requires_grad_() for x in (torch.randn(9, 4), torch.randn(9, 4), torch.randn(9, 4)))
        + (torch.tensor([0, 2, 5, 9]), torch.tensor([0, 3, 6, 9]))
    )
)
def nested_two_offsets(q, k, v, o, o2):
    a, b, c = (
        torch.nested.nested_tensor_from_jagged(x, f, max_seqlen=5, min_seqlen=2).to_padded_tensor(p)
        for x, f, p in ((q, o, 0.0), (k, o2, 0.5), (v, o2, 1.0))
    )
    return torch.sigmoid(a @ T(b)) @ c


@case(
    lambda: (
        tuple(x.requires_grad_() for x in (torch.randn(9, 4), torch.randn(9, 4), torch.randn(9, 4)))
        + (torch.tensor([0, 2, 5, 9]),)
    )
)
def nested_there_and_back(q, k, v, o):
    from torch.nested._internal.nested_tensor import nested_from_padded

    a, b, c = (
        torch.nested.nested_tensor_from_jagged(x, o, max_seqlen=4, min_seqlen=2).to_padded_tensor(
            0.0
        )
        for x in (q, k, v)
    )
    p = torch.sigmoid(a @ T(b)) @ c
    return nested_from_padded(p, o, ragged_idx=1, sum_S=9).values()


class PadF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, o):
        ctx.save_for_backward(o)
        ctx.n = x.shape[0]
        return torch.ops.aten._jagged_to_padded_dense_forward(x, [o], [5], 0.0)

    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return torch.ops.aten._padded_dense_to_jagged_forward(g, [o], ctx.n), None


class PadF2(PadF):
    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return torch.ops.aten._padded_dense_to_jagged_forward(g * 2, [o], ctx.n), None


class PadF3(PadF):
    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return torch.ops.aten._padded_dense_to_jagged_forward(g, [o], ctx.n) * 3, None


class UnpadF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, o):
        ctx.save_for_backward(o)
        return torch.ops.aten._padded_dense_to_jagged_forward(x, [o], 9)

    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return torch.ops.aten._jagged_to_padded_dense_forward(g, [o], [5], 0.0), None


class UnpadF1(UnpadF):
    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return torch.ops.aten._jagged_to_padded_dense_forward(g, [o], [5], 1.0), None


class UnpadFd(UnpadF):
    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return torch.ops.aten._jagged_to_padded_dense_forward(g.detach() * 2, [o], [5], 0.0), None


class UnpadFo(UnpadF):
    @staticmethod
    def forward(ctx, x, o):
        ctx.save_for_backward(o.flip(0).diff().abs().cumsum(0))
        return torch.ops.aten._padded_dense_to_jagged_forward(x, [o], 9)

    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return torch.ops.aten._jagged_to_padded_dense_forward(g, [F.pad(o, (1, 0))], [5], 0.0), None


def pf(P_, U, name):
    def g(q, k, v, o):
        return U.apply(torch.sigmoid(P_.apply(q, o) @ T(P_.apply(k, o))) @ P_.apply(v, o), o)

    g.__name__ = name
    CASES.append((g, jag(g=True)))


for P_ in (PadF, PadF2, PadF3):
    for U in (UnpadF, UnpadF1, UnpadFd, UnpadFo):
        pf(P_, U, f"func_{P_.__name__}_{U.__name__}")


# ---- batch 7
def params(*which):
    return lambda: tuple((torch.nn.Parameter(x) if i in which else x) for i, x in enumerate(qkv()))


variant(att, "later_param_only_q_change_q", params(0), ng(lambda q, k, v: q.mul_(5)))
variant(att, "later_param_only_k_change_k", params(1), ng(lambda q, k, v: k.mul_(5)))
variant(att, "later_param_only_v_change_v", params(2), ng(lambda q, k, v: v.mul_(5)))
variant(att, "later_param_only_q_change_q_data", params(0), lambda q, k, v: q.data.mul_(5))
variant(att, "later_param_only_v_change_v_data", params(2), lambda q, k, v: v.data.mul_(5))
variant(att_relu, "later_param_relu_v", params(2), ng(lambda q, k, v: v.mul_(5)))
PB = lambda: torch.nn.Parameter(torch.randn(5, 5, dtype=D))
variant(att_bias, "later_param_bias", only(*QKV, extra=(PB,)), ng(lambda q, k, v, b: b.mul_(5)))
variant(
    att_bias,
    "later_param_bias_data",
    only(*QKV, extra=(PB,)),
    lambda q, k, v, b: b.data.clamp_(-0.1, 0.1),
)
FB55 = lambda: torch.nn.Parameter(torch.randn(5, 5, dtype=D), requires_grad=False)
variant(
    att_bias, "later_frozen_param_bias", only(*QKV, extra=(FB55,)), lambda q, k, v, b: b.mul_(5)
)
variant(
    att_bias,
    "later_frozen_param_bias_data",
    only(*QKV, extra=(FB55,)),
    lambda q, k, v, b: b.data.mul_(5),
)


def att_table(q, k, v, t):
    i = torch.arange(5)
    return torch.sigmoid(q @ T(k) + t[i[:, None] - i + 4]) @ v


variant(
    att_table,
    "later_table_inplace",
    only(*QKV, extra=(lambda: torch.randn(9, dtype=D, requires_grad=True),)),
    ng(lambda q, k, v, t: t.mul_(4)),
)
variant(
    att_table,
    "later_table_data",
    only(*QKV, extra=(lambda: torch.randn(9, dtype=D, requires_grad=True),)),
    lambda q, k, v, t: t.data.mul_(4),
)
variant(
    att_table,
    "later_table_frozen",
    only(*QKV, extra=(lambda: torch.randn(9, dtype=D),)),
    lambda q, k, v, t: t.mul_(4),
)


def att_lens(q, k, v, l):
    return (torch.sigmoid(q @ T(k)) * (torch.arange(5) < l[:, None, None, None])) @ v


variant(
    att_lens,
    "later_lengths",
    only(*QKV, extra=(lambda: torch.tensor([2, 4]),)),
    lambda q, k, v, l: l.fill_(5),
)
variant(
    att_lens,
    "later_lengths_data",
    only(*QKV, extra=(lambda: torch.tensor([2, 4]),)),
    lambda q, k, v, l: l.data.fill_(1),
)


def att_scale(q, k, v, s):
    return torch.tanh(q @ T(k) + s) @ v


variant(
    att_scale,
    "later_shift_learned",
    only(*QKV, extra=(lambda: torch.tensor(0.5, dtype=D, requires_grad=True),)),
    ng(lambda q, k, v, s: s.mul_(5)),
)


def att_where_value(q, k, v, b):
    return torch.where(b.detach() > 0, torch.tanh(q @ T(k)), b) @ v


variant(
    att_where_value,
    "later_where_value",
    only(*QKV, extra=(B55,)),
    ng(lambda q, k, v, b: b.mul_(-1)),
)


def att_sign_mask(q, k, v, b):
    return (torch.tanh(q @ T(k)) * (b > 0)) @ v


variant(
    att_sign_mask,
    "later_condition_of_learned",
    only(*QKV, extra=(B55,)),
    ng(lambda q, k, v, b: b.mul_(-1)),
)


def fb_att(q, k, v, o):
    return fb_plain(q, k, v, o)


variant(
    fb_att,
    "later_fb_offsets_data",
    fj(),
    lambda q, k, v, o: o.data.copy_(torch.tensor([0, 3, 6, 9])),
)
variant(
    att_bias, "later_bias_only_bias_learns", only(extra=(B55,)), ng(lambda q, k, v, b: b.mul_(5))
)
variant(
    att_bias,
    "later_bias_only_bias_learns_q",
    only(extra=(B55,)),
    lambda q, k, v, b: (q.mul_(5), k.mul_(5)),
)
variant(
    att_bias, "later_bias_only_bias_learns_v", only(extra=(B55,)), lambda q, k, v, b: v.data.mul_(5)
)


class Hold(torch.nn.Module):
    """The bias is made inside, returned, and written by the caller"""

    def __init__(s):
        super().__init__()
        s.box = []

    def forward(s, q, k, v, b):
        c = b * 2
        o = torch.sigmoid(q @ T(k) + c) @ v
        return o, c


@case(only(*QKV, extra=(B55,)))
def made_bias_returned_written(q, k, v, b):
    c = b * 2
    o = torch.sigmoid(q @ T(k) + c) @ v
    torch._dynamo.graph_break()
    c.data.mul_(0.1)
    return o


@case(only(*QKV, extra=(B55,)))
def made_bias_written_after_break(q, k, v, b):
    c = b * 2
    o = torch.sigmoid(q @ T(k) + c) @ v
    torch._dynamo.graph_break()
    c.mul_(0.1)
    return o, c


@case(only(*QKV, extra=(B55,)))
def bias_written_after_break(q, k, v, b):
    o = torch.sigmoid(q @ T(k) + b) @ v
    torch._dynamo.graph_break()
    with torch.no_grad():
        b.mul_(0.1)
    return o


# ---- batch 8
def fj2(n=9):
    return lambda: (
        tuple(torch.randn(n, 4, dtype=torch.float32, requires_grad=True) for _ in range(3))
        + (torch.tensor((0, 2, 5, 9)),)
    )


@fcase(fj2())
def fb_signed_sqrt(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    s = a @ T(b)
    return funpad((s.sign() * s.abs().sqrt()) @ c, o)


@fcase(fj2())
def fb_reciprocal(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(torch.reciprocal(a @ T(b)) @ c, o)


@fcase(fj2())
def fb_rsqrt_abs(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(torch.rsqrt((a @ T(b)).abs()) @ c, o)


@fcase(fj2())
def fb_log1p_ok(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(torch.log1p((a @ T(b)).abs()) @ c, o)


@fcase(lambda: fj2()() + (torch.full((5, 5), 1000.0).triu(3).requires_grad_(),))
def fb_exp_overflow_at_padding(q, k, v, o, w):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(torch.exp(a @ T(b) + w) @ c, o)


@fcase(fj2())
def fb_value_nan_fill(q, k, v, o):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o, p=float("nan"))
    return funpad(torch.sigmoid(a @ T(b)) @ c, o)


@fcase(lambda: fj2()() + (torch.full((5, 5), float("nan")).triu(3),))
def fb_nan_bias_at_padding(q, k, v, o, w):
    a, b, c = fpad(q, o), fpad(k, o), fpad(v, o)
    return funpad(torch.sigmoid(a @ T(b) + w) @ c, o)


ELSEWHERE = {
    "second_order",
    "scale_parameter_wide",
    "scale_parameter_wide_bf",
    "bias_wide_bf",
    "complex_bias",
    "float8_operands",
    "autocast_bf",
    "autocast_scores_only",
    "autocast_nested_off",
    "autocast_float_island",
    "half_square_overflow",
    "query_cast_half",
    "fb_autocast",
    "later_gate_data",
    "later_all_change_q_data",
    "later_fb_offsets_data",
    "fb_exp_overflow_at_padding",
    "fb_nan_bias_at_padding",
}
CASES = [
    (given, make)
    for given, make in CASES
    if getattr(given[0] if isinstance(given, tuple) else given, "__name__", "") not in ELSEWHERE
]
