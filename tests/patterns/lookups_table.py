"""How models look a bias up in a learned table: a small function, and the table's sizes.

    @lookup(T, H)                   bias(table [T, H], places [N, N]) -> [..., N, N], in the program
    @lookup(T, H, by="operator")    by gdpa::look_up
    @lookup(T, H, by="model")       the call stays as it is

`places` are drawn from 0 to T - 1. Sizes are T = 7 buckets, H = 2 heads, N = 24 tokens, B = 3.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

B, H, N, T = 3, 2, 24, 7


@dataclass(frozen=True)
class Spelling:
    """One row. note: a part of the report's line on a table that stays as it is."""

    bias: Callable[[Tensor, Tensor], Tensor]
    sizes: tuple[int, ...]
    by: str = "program"
    note: str = ""


SPELLINGS: dict[str, Spelling] = {}


def lookup(*sizes: int, by: str = "program", note: str = "") -> Callable:
    def add(bias: Callable) -> Callable:
        SPELLINGS[bias.__name__] = Spelling(bias, sizes, by, note)
        return bias

    return add


def lookups(add: Callable, **biases: Callable) -> None:
    """Several rows of one expression each."""
    for name, bias in biases.items():
        bias.__name__ = name
        add(bias)


# What looks up


lookups(
    lookup(T),
    one_index=lambda t, i: t[i],
    places_from_the_end=lambda t, i: t[i - T],
    int32_places=lambda t, i: t[i.int()],
    a_function_of_the_table=lambda t, i: (16 * t.sigmoid())[i],
    clamped_places=lambda t, i: t[(3 * i - 5).clamp(0, T - 1)],
    places_of_the_table_itself=lambda t, i: t[(i + t.argmax()) % T],
)


lookups(
    lookup(T, by="operator"),
    take=lambda t, i: torch.take(t, i),
    masked_places=lambda t, i: torch.where(i > 2, t[torch.where(i > 2, i, 0)], 0.0),
    padded=lambda t, i: F.pad(t[i[1:, 1:]], (1, 0, 1, 0), value=0.25),
    joined=lambda t, i: torch.cat([t[i[:5]], torch.stack([t[i[row]] for row in range(5, N)])]),
    summed=lambda t, i: torch.stack([t[i], t[i.mT]]).sum(0),
    rolled=lambda t, i: t[i].roll(1, 0).flip(1).tril(),
)


lookups(
    lookup(H, T),
    index_after_a_whole_dim=lambda t, i: t[:, i],
    index_after_the_rest=lambda t, i: t[..., i],
    index_with_a_new_dim=lambda t, i: t[:, None, i].squeeze(1),
    two_indices=lambda t, i: t[torch.arange(H)[:, None, None], i],
    index_select_of_the_last_dim=lambda t, i: torch.index_select(
        t, -1, index=i.flatten()
    ).unflatten(1, (N, N)),
    gather=lambda t, i: t.gather(1, i.view(1, -1).expand(H, -1)).view(H, N, N),
)


@lookup(2, T, H)
def index_beside_a_number_and_a_slice(t, i):
    return t[1, i, :1].squeeze(-1)


@lookup(T, 3, by="operator")
def index_before_a_slice(t, i):
    return t[i, 1:].permute(2, 0, 1)


@lookup(T, T, by="operator")
def two_indices_of_their_own_dims(t, i):
    """Rows by one, columns by the other, as relative positions of pixels have them."""
    return t[i[:, :1], i[:1]]


@lookup(H, T, 2, by="operator")
def two_indices_apart(t, i):
    return t[torch.arange(H)[:, None, None], i, torch.ones_like(i)]


lookups(
    lookup(T, H),
    index_select_of_flat_places=lambda t, i: (
        t.index_select(0, i.view(-1)).view(N, N, H).permute(2, 0, 1)
    ),
    embedding=lambda t, i: F.embedding(i, t).permute(2, 0, 1),
)


lookups(
    lookup(T, H, by="operator"),
    embedding_with_padding=lambda t, i: F.embedding(i, t, padding_idx=2).permute(2, 0, 1),
    embedding_with_padding_from_the_end=lambda t, i: F.embedding(
        i, weight=t, padding_idx=-1
    ).permute(2, 0, 1),
    aten_embedding_with_padding=lambda t, i: torch.embedding(t, i, 3).permute(2, 0, 1),
    embedding_of_keywords=lambda t, i: F.embedding(input=i, weight=t, padding_idx=0).permute(
        2, 0, 1
    ),
)


@lookup(H, T, by="operator")
def take_of_a_matrix(t, i):
    """Places of the table as one row."""
    return t.take(i + T * torch.arange(H)[:, None, None])


lookups(
    lookup(H, T, by="operator"),
    take_along_dim=lambda t, i: torch.take_along_dim(t, i.view(1, -1), dim=1).view(H, N, N),
)


@lookup(1, T)
def take_along_no_dim(t, i):
    return torch.take_along_dim(t, i).view(N, N)


@lookup(2 * T)
def a_slice_of_the_table(t, i):
    return t[:T][i]


@lookup(T, H)
def two_tables(t, i):
    """Of one parameter, each with indices of its own."""
    return t[:, 0][i] + F.embedding(T - 1 - i, t[:, 1:]).squeeze(-1)


# What the places are


# What the bias goes through


@lookup(T, by="operator")
def sliced(t, i):
    wider = F.pad(i, (0, 1, 0, 1))
    return t.index_select(0, wider.view(-1)).view(N + 1, N + 1)[:-1, :-1]


@lookup(T, by="operator")
def added_in_place_to_zeros(t, i):
    bias = torch.zeros(N, N, dtype=t.dtype)
    bias += t[i]
    return bias


@lookup(T, by="operator")
def added_in_place_to_a_slice(t, i):
    bias = t.new_zeros(N, N)
    bias[:, 1:].add_(t[i[:, 1:]])
    return bias


@lookup(T, by="operator")
def written_into_a_slice(t, i):
    bias = t.new_zeros(H, N, N)
    bias[:, 1:, :] = t[i[1:]]
    return bias


@lookup(T, H, by="operator")
def changed_in_place(t, i):
    bias = t[i].permute(2, 0, 1)
    bias.mul_(2.0)
    return bias.masked_fill_(i == 4, 0.0)


# What stays


@lookup(T, H, by="model", note="divides by how often")
def embedding_scaled_by_frequency(t, i):
    return F.embedding(i, t, scale_grad_by_freq=True).permute(2, 0, 1)


@lookup(T, H, by="model", note="gradient is sparse")
def embedding_with_a_sparse_gradient(t, i):
    return F.embedding(i, t, sparse=True).permute(2, 0, 1)


@lookup(T, H, by="model", note="changes the rows")
def embedding_with_a_greatest_norm(t, i):
    return F.embedding(i, t, max_norm=0.5).permute(2, 0, 1)


@lookup(T, T, by="operator")
def one_index_twice(t, i):
    return t[i, i]


@lookup(3, T, H, by="operator")
def table_in_another_order(t, i):
    """The result has the order of its dims."""
    return t.permute(2, 1, 0)[:, i].sum(-1)


@lookup(3, T, H, by="model", note="in another order")
def two_places_of_a_table_in_another_order(t, i):
    return t.permute(2, 1, 0)[:, i, :2].sum(-1)


@lookup(N, N, by="model")
def as_large_as_the_bias(t, i):
    return t[torch.arange(N)]
