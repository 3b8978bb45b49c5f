"""Models that gather keys and values by a page table: a function each, with what becomes of it.

Operands: query [B, H, M, D], pools of keys and values [P, R, H, D], a page table [B, PAGES] and
lengths [B].
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.operands import generator_of

B, H, M, D = 3, 2, 5, 8
P, R, PAGES = 11, 4, 6  # pages, rows of each, pages of a sequence
N = PAGES * R

# From each function to the rows of the pages that are read, or to why these are copied.
FORMS: dict[Callable, int | str] = {}


def form(result: int | str) -> Callable[[Callable], Callable]:
    def noted(function: Callable) -> Callable:
        FORMS[function] = result
        return function

    return noted


def operands(seed: int = 0) -> list[Tensor]:
    """The table has pages twice, and -1 past the pages that a sequence needs."""
    generator = generator_of(seed)
    query = torch.randn(B, H, M, D, generator=generator)
    pools = [torch.randn(P, R, H, D, generator=generator) for _ in range(2)]
    table = torch.randint(P, (B, PAGES), generator=generator)
    table[1, :2] = table[0, :2]
    table[1, 3:] = -1
    return [query, *pools, table, torch.tensor([N, 9, 17])]


def attend(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
    weights = F.silu(query @ key.mT * D**-0.5)
    return (weights * (torch.arange(key.shape[2]) < lengths[:, None, None, None])) @ value


def heads(copy: Tensor) -> Tensor:
    return copy.reshape(B, N, -1, D).transpose(1, 2)


@form(R)
def subscript(query, keys, values, table, lengths):
    return attend(query, heads(keys[table]), heads(values[table]), lengths)


@form(R)
def index_select(query, keys, values, table, lengths):
    flat = table.clamp(min=0).flatten()
    key = torch.index_select(keys, 0, flat).view(B, N, H, D).transpose(1, 2)
    return attend(query, key, heads(values.index_select(0, flat)), lengths)


@form(R)
def embedding(query, keys, values, table, lengths):
    table = table.clamp(min=0)
    copies = (F.embedding(table, pool.view(P, -1)) for pool in (keys, values))
    return attend(query, *map(heads, copies), lengths)


@form(R)
def gather(query, keys, values, table, lengths):
    index = table.clamp(min=0).view(-1, 1, 1, 1).expand(-1, R, H, D)
    return attend(query, heads(keys.gather(0, index)), heads(values.gather(0, index)), lengths)


@form(R)
def narrow_table(query, keys, values, table, lengths):
    return subscript(query, keys, values, table.int(), lengths)


@form(R)
def narrow_table_of_values(query, keys, values, table, lengths):
    """In an integer that no page fits, eager raises where it reads the keys."""
    return attend(query, heads(keys[table]), heads(values[table.int()]), lengths)


@form(1)
def slots(query, keys, values, table, lengths):
    """A slot for each token."""
    place = torch.arange(N)
    rows = table.gather(1, (place // R).expand(B, N)).clamp(min=0) * R + place % R
    key, value = (pool.flatten(0, 1)[rows].transpose(1, 2) for pool in (keys, values))
    return attend(query, key, value, lengths)


@form(R)
def pages_of_lengths(query, keys, values, table, lengths):
    """Pages past the length are read as the first one."""
    table = torch.where(torch.arange(PAGES) * R < lengths[:, None], table, 0)
    return subscript(query, keys, values, table, lengths)


@form(R)
def longer_table(query, keys, values, table, lengths):
    longer = torch.cat([table, table], 1)
    return subscript(query, keys, values, longer[:, :PAGES], lengths)


@form(R)
def layers(query, keys, values, table, lengths):
    """Views of a cache of all layers, with keys and values in one tensor."""
    cache = torch.stack([torch.stack([keys, values]), torch.stack([values, keys])])
    key, value = (heads(cache[1][x][table]) for x in (1, 0))
    return attend(query, key, value, lengths)


@form(R)
def subscript_of_a_cache(query, keys, values, table, lengths):
    cache = torch.stack([keys, values])
    return attend(query, heads(cache[0, table]), heads(cache[1, table]), lengths)


@form(R)
def second_dim(query, keys, values, table, lengths):
    cache = torch.stack([keys, values])[:, table]
    return attend(query, heads(cache[0]), heads(cache[1]), lengths)


@form(R)
def together(query, keys, values, table, lengths):
    """Keys and values of a page lie side by side."""
    key, value = torch.stack([keys, values], 1)[table].unbind(2)
    return attend(query, heads(key), heads(value), lengths)


@form(R)
def heads_first(query, keys, values, table, lengths):
    pools = (pool.transpose(1, 2).contiguous() for pool in (keys, values))
    copies = (pool[table].transpose(1, 2).reshape(B, H, N, D) for pool in pools)
    return attend(query, *copies, lengths)


@form(R)
def channels_first(query, keys, values, table, lengths):
    """Keys lie transposed in their pages."""
    key = keys.permute(0, 2, 3, 1).contiguous()[table].permute(0, 2, 3, 1, 4).reshape(B, H, D, N)
    weights = F.silu(query @ key) * (torch.arange(N) < lengths[:, None, None, None])
    return weights @ heads(values[table])


@form(R)
def shared_heads(query, keys, values, table, lengths):
    key, value = (heads(pool[table]) for pool in (keys[:, :, :1], values[:, :, 1:]))
    return attend(query, key, value.expand(-1, H, -1, -1), lengths)


@form(R)
def one_table(query, keys, values, table, lengths):
    """All sequences share their pages."""
    key, value = (pool[table[0]].flatten(0, 1).transpose(0, 1) for pool in (keys, values))
    return attend(query, key[None], value[None], lengths)


@form(R)
def written_before(query, keys, values, table, lengths):
    keys[table[:, 0], 1] = 3.0
    values.index_put_((table[:, 0], torch.tensor([2])), query[:, :, 0])
    return subscript(query, keys, values, table, lengths)


@form(R)
def written_afterwards(query, keys, values, table, lengths):
    out = subscript(query, keys, values, table, lengths)
    keys.index_copy_(0, table[0, :1], torch.full((1, R, H, D), 7.0))
    values[2] = 0.0
    table.zero_()
    return out


@form("`setitem` (line")
def written_in_between(query, keys, values, table, lengths):
    key, value = heads(keys[table]), heads(values[table])
    keys[table[:, 0]] = 7.0
    return attend(query, key, value, lengths)


@form("writes into them or their table later")
def values_written_before_their_product(query, keys, values, table, lengths):
    key, value = heads(keys[table]), heads(values[table])
    weights = F.silu(query @ key.mT) * (torch.arange(N) < lengths[:, None, None, None])
    values.view(-1)[::3].mul_(2.0)
    return weights @ value


@form("writes into them or their table later")
def table_written_in_between(query, keys, values, table, lengths):
    key, value = heads(keys[table]), heads(values[table])
    table[:, 0] = 1
    return attend(query, key, value, lengths)


@form("the copy is written into")
def written_copy(query, keys, values, table, lengths):
    key, value = keys[table], values[table]
    key[:, 0] = 0.0
    return attend(query, heads(key), heads(value), lengths)


@form("K and V have different tables")
def different_tables(query, keys, values, table, lengths):
    return attend(query, heads(keys[table]), heads(values[table.flip(1)]), lengths)


@form("K and V have different tables")
def table_that_changes(query, keys, values, table, lengths):
    key = heads(keys[table.clone()])
    table += 1
    return attend(query, key, heads(values[table.clone() % P]), lengths)


@form("the other one of K and V is no such copy")
def only_keys(query, keys, values, table, lengths):
    return attend(
        query, heads(keys[table]), heads(values[:PAGES].expand(B, -1, -1, -1, -1)), lengths
    )


@form("the table does not list the pages of a sequence in their order")
def strided_keys(query, keys, values, table, lengths):
    """Key j is row j // PAGES of page j % PAGES."""
    key, value = (heads(pool[table].transpose(1, 2)) for pool in (keys, values))
    return attend(query, key, value, lengths)


@form("K and V are not known to have as many pages")
def more_values(query, keys, values, table, lengths):
    values = torch.cat([values, values])
    return subscript(query, keys, values, table, lengths)


@form("it is no view of whole pages")
def cut(query, keys, values, table, lengths):
    key, value = (heads(pool[table])[:, :, : N - 3] for pool in (keys, values))
    return attend(query, key, value, lengths)


@form("the pools would be copied as a whole")
def rounded(query, keys, values, table, lengths):
    key, value = (heads(pool.bfloat16()[table].float()) for pool in (keys, values))
    return attend(query, key, value, lengths)


@form(R)
def scores_in_fp32(query, keys, values, table, lengths):
    query, keys, values = query.bfloat16(), keys.bfloat16(), values.bfloat16()
    weights = F.silu(query.float() @ heads(keys[table]).float().mT).bfloat16()
    return (weights * (torch.arange(N) < lengths[:, None, None, None])) @ heads(values[table])


@form("queries are read in order")
def queries_in_pages(query, keys, values, table, lengths):
    rows = torch.arange(B * M).view(B, M).flip(0)
    query = query.transpose(1, 2).flatten(0, 1)[rows].transpose(1, 2)
    return subscript(query, keys, values, table, lengths)
