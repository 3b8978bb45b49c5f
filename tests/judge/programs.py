"""Programs for checks that no other program of the corpus needs: (function, operands, how)."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.patterns import pages, row_sums_table, values_table

aten = torch.ops.aten
PROGRAMS: dict[str, tuple[Callable, Callable[[], tuple], dict[str, Any]]] = {}


def program(make: Callable[[], tuple], **how: Any) -> Callable[[Callable], Callable]:
    def register(function: Callable) -> Callable:
        PROGRAMS[function.__name__] = (function, make, how)
        return function

    return register


def programs(make: Callable[[], tuple], **functions: Callable) -> None:
    """Programs of the same operands, by their names."""
    PROGRAMS.update({name: (function, make, {}) for name, function in functions.items()})


B, H, N, M, D = 2, 2, 6, 6, 4


def heads() -> tuple:
    return tuple(torch.randn(B, H, size, D).requires_grad_() for size in (N, M, M))


def frozen() -> tuple:
    return tuple(x.detach() for x in heads())


def cast(dtype: torch.dtype, make: Callable[[], tuple] = heads) -> Callable[[], tuple]:
    return lambda: tuple(x.detach().to(dtype).requires_grad_() for x in make())


def square() -> tuple:
    return tuple(torch.randn(B, H, D, D).requires_grad_() for _ in range(3))


programs(
    heads,
    scores_viewed_across=lambda q, k, v: F.silu(q @ k.mT).view(B, N, H, M).transpose(1, 2) @ v,
    weights_of_two_products=lambda q, k, v: (F.silu(q @ k.mT) * torch.sigmoid(k @ q.mT)) @ v,
    scores_rounded_on_the_way=lambda q, k, v: F.silu((q @ k.mT).bfloat16().float() * 64.0) @ v,
    product_that_gives_a_shape=lambda q, k, v: F.silu(q @ k.mT + torch.zeros_like(k @ q.mT)) @ v,
)
programs(
    lambda: (*heads(), torch.randn(N).requires_grad_(), torch.randn(M)),
    bias_of_detached_rows=lambda q, k, v, x, y: F.silu(q @ k.mT + (x[:, None].detach() + y)) @ v,
    detached_sum_of_rows_and_columns=(
        lambda q, k, v, x, y: F.silu(q @ k.mT + (x[:, None] + y).detach()) @ v
    ),
)


@program(heads)
def division_towards_zero(q, k, v):
    i = torch.arange(N)
    near = torch.div(i[:, None] - i, 3, rounding_mode="trunc") == 0
    return torch.where(near, F.silu(q @ k.mT), 0.0) @ v


@program(lambda: tuple(torch.randn(B, 4, N, D).requires_grad_() for _ in range(3)))
def one_head_gates_two(q, k, v):
    s = q @ k.mT
    return torch.cat([F.silu(s[:, :2]) * torch.sigmoid(s[:, 0:1]), F.gelu(s[:, 2:])], 1) @ v


@program(heads)
def random_numbers_drawn_for_nothing(q, k, v):
    s = q @ k.mT
    torch.rand_like(s)
    return F.silu(s) @ v + torch.rand(D)


@program(lambda: (*heads(), torch.zeros(())))
def scores_counted_into_an_input(q, k, v, count):
    s = q @ k.mT
    count.add_(s.detach().amax())
    return F.silu(s) @ v


def looked_up(**options: Any) -> Callable:
    """A bias out of a table that learns."""

    def attention(q, k, v, index, table):
        q, k, v = (x.repeat(1, 1, 11, 1)[:, :, :64] for x in (q, k, v))
        bias = F.embedding(index, table, **options).permute(2, 0, 1)
        return F.silu(q @ k.mT + bias) @ v

    return attention


programs(
    lambda: (*heads(), torch.randint(0, 4, (64, 64)), torch.randn(4, H).requires_grad_()),
    table_with_padding=looked_up(padding_idx=0),
    table_scaled_by_frequency=looked_up(scale_grad_by_freq=True),
)


@program(heads)
def key_seen_without_gradients(q, k, v):
    with torch.no_grad():
        turned = k.transpose(-2, -1)
    return F.silu(q @ turned) @ v


@program(lambda: tuple(torch.randn(B, N, D).requires_grad_() for _ in range(4)))
def second_product_adds(q, k, v, residual):
    return torch.baddbmm(residual, F.silu(q @ k.mT), v)


@program(heads)
def scores_of_the_neighbour(q, k, v):
    s = q @ k.mT
    return (F.silu(s) * torch.sigmoid(s.flip(-1))) @ v


@program(heads)
def scores_turned_around(q, k, v):
    s = q @ k.mT
    return (F.silu(s) * torch.sigmoid(s.mT)) @ v


@program(heads)
def scores_returned_as_well(q, k, v):
    s = q @ k.mT
    return F.silu(s) @ v, s.sum()


@program(lambda: (*heads(), torch.randn(B, H, N, M).requires_grad_()))
def bias_cast_and_back(q, k, v, bias):
    return F.silu(q @ k.mT + bias.bfloat16().float()) @ v


@program(heads)
def mask_that_rounds(q, k, v):
    i = torch.arange(N, dtype=torch.float32)
    return torch.where((i[:, None] - i) * 0.1 <= 0.3, F.silu(q @ k.mT), 0.0) @ v


@program(lambda: tuple(torch.randn(B, N, H, D).requires_grad_() for _ in range(3)))
def strides_of_the_output(q, k, v):
    s = torch.einsum("bnhd,bmhd->bhnm", q, k)
    out = torch.einsum("bhnm,bmhd->bhnd", F.silu(s), v)
    return torch.as_strided(out, (5,), (7,))


# In-place calls


def infinite_query() -> tuple:
    q, k, v = heads()
    q.data[0, 0, 0] = torch.inf
    return q, k, v


@program(infinite_query)
def scores_clamped_through_an_expanded_view(q, k, v):
    s = q @ k.mT
    s.expand_as(s).clamp_(-1, 1)
    return F.silu(s) @ v


@program(heads)
def hook_on_a_view(q, k, v):
    turned = k.transpose(-2, -1)
    s = q @ turned
    turned.register_hook(lambda grad: grad * 3)
    return F.silu(s) @ v


@program(frozen)
def storage_exchanged_later(q, k, v):
    moved, other = q * 1, q * 2
    alias = moved[0]
    s = moved @ k.mT
    alias.mul_(2)
    out = F.silu(s) @ v
    moved.set_(other)
    return out


def turned_keys() -> tuple:
    q, k, v = frozen()
    return q, k.mT.contiguous().mT, v


@program(turned_keys, dynamic=True)
def copy_by_strides_written(q, k, v):
    copy = k.contiguous()
    s = q @ k.mT
    copy.mul_(2)
    return F.silu(s) @ v


@program(heads)
def value_changed_after_its_checkpoint(q, k, v):
    v = v * 1
    out = checkpoint(lambda: F.silu(q @ k.mT) @ v, use_reentrant=False)
    v.data.zero_()
    return out


@program(heads)
def bias_cleared_later(q, k, v):
    i = torch.arange(N, dtype=q.dtype)
    bias = i[:, None] - i
    out = F.silu(q @ k.mT + bias) @ v
    bias.zero_()
    return out, bias


# Regions


@program(square, dynamic=True)
def filled_in_the_shape_of_the_scores(q, k, v):
    s = q @ k.mT
    return F.silu(s) @ v + torch.full(s.size(), 1)


@program(lambda: (*frozen(), torch.arange(M) % 3 > 0))
def keys_that_are_chosen(q, k, v, chosen):
    at = chosen.nonzero()[:, 0]
    k, v = k[:, :, at], v[:, :, at]
    return F.silu(q @ k.mT) / k.shape[2] @ v


@program(frozen)
def softmax_that_is_overwritten(q, k, v):
    s = q @ k.mT
    return F.softmax(s, -1).copy_(F.silu(s)) @ v


@program(square)
def keys_turned_around(q, k, v):
    return (F.silu(q @ k.mT) * torch.sigmoid(q @ k)) @ v


library = torch.library.Library("gdpa_judge_tests", "DEF")
for name in ("silu", "zeros_like"):
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: x * 2 + 1, "CompositeExplicitAutograd")
    library.impl(name, lambda x: torch.empty_like(x), "Meta")


@program(frozen)
def namesake_of_silu(q, k, v):
    return torch.ops.gdpa_judge_tests.silu(q @ k.mT) @ v


@program(frozen)
def namesake_of_zeros(q, k, v):
    s = q @ k.mT
    return (F.silu(s) + torch.ops.gdpa_judge_tests.zeros_like(s)) @ v


@program(lambda: tuple(torch.randn(B, H, n, D).requires_grad_() for n in (N, 0, 0)))
def no_keys(q, k, v):
    return F.silu(q @ k.mT) @ v


@program(lambda: tuple(torch.randn(B, H, N, n).requires_grad_() for n in (0, 0, D)))
def no_channels(q, k, v):
    return F.silu(q @ k.mT + 1) @ v


@program(lambda: (*heads(), torch.randn(N, M).requires_grad_()))
def scores_that_are_only_compared(q, k, v, bias):
    return torch.where(q @ k.mT > 0, bias, 0.0) @ v


@program(heads)
def buffer_written_in_part(q, k, v):
    s = q @ k.mT
    gate = torch.zeros_like(s)
    gate[..., :3] = 1.0
    return F.silu(s) * gate @ v


@program(heads)
def buffer_written_in_one_head(q, k, v):
    s = q @ k.mT
    gate = torch.zeros_like(s)
    gate[:, 0] = 1.0
    return F.silu(s) * gate @ v


# Widths


@program(cast(torch.bfloat16))
def distances_in_16_bits(q, k, v):
    i = torch.arange(N).bfloat16() * 101 + 1
    return torch.where(i[:, None] - i < 101, F.silu(q @ k.mT), 0.0) @ v


LONG = 600  # past 256, where bfloat16 has no odd numbers


def long() -> tuple:
    ends = torch.arange(LONG).bfloat16()
    return (*(torch.randn(1, 1, LONG, D).requires_grad_() for _ in range(3)), ends)


@program(long)
def places_compared_in_16_bits(q, k, v, ends):
    near = torch.arange(LONG)[:, None] >= ends
    return torch.where(near, F.silu(q @ k.mT), 0.0) @ v


@program(long)
def places_cast_to_16_bits(q, k, v, ends):
    near = torch.arange(LONG).bfloat16()[:, None] >= ends
    return torch.where(near, F.silu(q @ k.mT), 0.0) @ v


def two_values() -> tuple:
    return (*heads(), torch.randn(B, H, M, D).requires_grad_())


def values_without_gradients() -> tuple:
    return tuple(x.detach() for x in two_values())


for function in (
    values_table.a_value_written_between,
    values_table.a_value_that_is_made_from_the_first_result,
):
    program(values_without_gradients, training=False)(function)


@program(two_values)
def one_of_two_results_is_dropped(q, k, v, u):
    """The other value has a gradient of None, and none of zeros."""
    w = F.silu(q @ k.mT)
    return w @ v, (w @ u).detach()


@program(two_values)
def weights_multiplied_by_themselves(q, k, v, u):
    w = torch.sigmoid(q @ k.mT)
    return F.relu(w @ w.mT) @ v + w @ u


programs(
    lambda: tuple(pages.operands()),
    pages_written_later=pages.values_written_before_their_product,
    page_table_written_later=pages.table_written_in_between,
)


program(lambda: values_without_gradients()[:3], training=False)(
    row_sums_table.sums_that_are_changed_in_place
)


@program(values_without_gradients, training=False)
def weights_written_after_their_sum(q, k, v, u):
    w = torch.sigmoid(q @ k.mT)
    total = w.sum(-1, keepdim=True)
    w.add_(1)
    return (w @ v) / total


@program(values_without_gradients, training=False)
def rows_that_cancel(q, k, v, u):
    """Of two keys: eager divides either weight by 0, and adds infinities."""
    k, v = torch.cat([k[..., :1, :], -k[..., :1, :]], 2), v[..., :2, :]
    w = torch.tanh(q @ k.mT)
    return (w / w.sum(-1, keepdim=True)) @ v
