"""Jagged idioms as data: a function, its operands, on which sides it runs on the values alone.

    @jagged("qk", q="l h d", ...)            both sides; the padding is gone
    @jagged("k", "JAGGED_OUTPUT", ...)       the keys only, and the note that says why

`sides` "" is the dense form. Operands are those of `tests.jagged.jagged_operands`; `n` is the
length that everything is padded to.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tests.jagged import Pad, PadOnes, pad, unpad

ROWS: list["Row"] = []
SELF = {"q": "l h d", "k": "l h d", "v": "l h e", "offsets": "offsets", "n": "scalar: n"}
SEEDS = {"q": "s h d", "k": "l h d", "v": "l h e", "offsets": "offsets", "n": "scalar: n"}


@dataclass(frozen=True)
class Row:
    """sides: "qk", "q", "k" or "". notes: the codes of what stays padded."""

    function: Callable
    specs: Mapping[str, str]
    sides: str
    notes: tuple[str, ...]
    program: str = ""

    @property
    def name(self) -> str:
        return self.function.__name__


def jagged(sides: str, *notes: str, program: str = "", **specs: str) -> Callable:
    def register(function: Callable) -> Callable:
        ROWS.append(Row(function, specs or SELF, sides, notes, program))
        return function

    return register


def attend(q, k, v, weight=F.silu):
    """[B, N, H, D] each -> [B, N, H, E]."""
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k)
    return torch.einsum("bhnm,bmhe->bnhe", weight(scores), v)


# Both sides


@jagged("qk")
def sandwich(q, k, v, offsets, n):
    return unpad(attend(*(pad(x, offsets, n) for x in (q, k, v))), offsets, q.shape[0])


@jagged("qk", program="mul(div(silu(mul(s,0.5)),")
def heads_first(q, k, v, offsets, n):
    padded = [pad(x, offsets, n).transpose(1, 2) for x in (q, k, v)]
    out = (F.silu(padded[0] @ padded[1].mT * 0.5) / n * 3.0) @ padded[2]
    return unpad(out.transpose(1, 2).flatten(2, 3), offsets, v.shape[0])


@jagged("qk")
def heads_in_the_batch(q, k, v, offsets, n):
    folded = lambda x: pad(x, offsets, n).transpose(1, 2).flatten(0, 1)
    out = torch.bmm(torch.relu(torch.bmm(folded(q), folded(k).mT)), folded(v))
    return unpad(out.unflatten(0, (-1, q.shape[1])).transpose(1, 2), offsets, q.shape[0])


@jagged("qk", q="l d", k="l d", v="l e", offsets="offsets", n="scalar: n")
def single_head(q, k, v, offsets, n):
    out = torch.tanh(pad(q, offsets, n) @ pad(k, offsets, n).mT) @ pad(v, offsets, n)
    return unpad(out, offsets, q.shape[0])


@jagged("qk", x="l 3*h*d", offsets="offsets", n="scalar: n", h="scalar: h")
def projection_padded_at_once(x, offsets, n, h):
    q, k, v = pad(x, offsets, n).chunk(3, dim=-1)
    q, k, v = (part.unflatten(-1, (h, -1)) for part in (q, k, v))
    return unpad(attend(q, k, v), offsets, x.shape[0])


@jagged("qk", x="l 3*h*d", offsets="offsets", n="scalar: n", h="scalar: h")
def projection_unbound(x, offsets, n, h):
    q, k, v = pad(x, offsets, n).view(-1, n, 3, h, x.shape[1] // (3 * h)).unbind(2)
    return unpad(attend(q, k, v), offsets, x.shape[0])


@jagged("qk", q="l h*2 d", k="l h d", v="l h e", offsets="offsets", n="scalar: n")
def shared_key_heads(q, k, v, offsets, n):
    q = pad(q, offsets, n).unflatten(2, (-1, 2))
    scores = torch.einsum("bnhgd,bmhd->bhgnm", q, pad(k, offsets, n))
    out = torch.einsum("bhgnm,bmhe->bnhge", F.gelu(scores), pad(v, offsets, n))
    return unpad(out.flatten(2), offsets, k.shape[0])


@jagged("qk", q="l h*2 d", k="l h d", v="l h e", offsets="offsets", n="scalar: n")
def key_heads_repeated_behind_the_padding(q, k, v, offsets, n):
    """As `repeat_kv` of many models."""
    repeat = lambda x: x[:, :, :, None].expand(-1, -1, -1, 2, -1).flatten(2, 3)
    keys, values = repeat(pad(k, offsets, n)), repeat(pad(v, offsets, n))
    return unpad(attend(pad(q, offsets, n), keys, values), offsets, q.shape[0])


@jagged("qk", q="l h*2 d", k="l h d", v="l h e", offsets="offsets", n="scalar: n")
def key_heads_repeated_one_by_one(q, k, v, offsets, n):
    keys = pad(k, offsets, n).repeat_interleave(2, dim=2)
    values = torch.repeat_interleave(pad(v, offsets, n), repeats=2, dim=-2)
    return unpad(attend(pad(q, offsets, n), keys, values), offsets, q.shape[0])


@jagged("qk", program="lt(q_idx,kv_idx)")
def causal(q, k, v, offsets, n):
    at = torch.arange(n)
    weight = lambda s: F.silu(s).masked_fill(at[:, None] < at, 0.0)
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)), weight)
    return unpad(out, offsets, q.shape[0])


@jagged("qk", program="sigmoid(s)")
def masked_by_lengths(q, k, v, offsets, n):
    lengths = offsets[1:] - offsets[:-1]
    keep = (torch.arange(n) < lengths[:, None])[:, None, None, :]
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)), lambda s: torch.sigmoid(s) * keep)
    return unpad(out, offsets, q.shape[0])


@jagged("qk", **SELF, bias="h n n")
def learned_bias(q, k, v, offsets, n, bias):
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)), lambda s: F.silu(s + bias))
    return unpad(out, offsets, q.shape[0])


@jagged("qk", **SELF, gate="l 1", program="a0:f[q,-]")
def scale_per_token(q, k, v, offsets, n, gate):
    scale = pad(gate, offsets, n).unsqueeze(1)
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)), lambda s: F.silu(s) * scale)
    return unpad(out, offsets, q.shape[0])


@jagged("qk", **SELF, times="l 1", program="a0:f[q,-]; a1:f[k,-]")
def differences_of_times(q, k, v, offsets, n, times):
    at = pad(times, offsets, n)
    apart = (at - at.mT).unsqueeze(1)
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)), lambda s: F.silu(s + apart))
    return unpad(out, offsets, q.shape[0])


@jagged("qk", **SELF, times="l 1", other="other", program="a0:f[b,")
def times_padded_by_other_offsets(q, k, v, offsets, n, times, other):
    at = pad(times, other, n).unsqueeze(1)
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)), lambda s: F.silu(s + at))
    return unpad(out, offsets, q.shape[0])


@jagged("qk", q="l h d", k="l h d", v="l h e", lengths="lengths", n="scalar: n")
def offsets_in_several_spellings(q, k, v, lengths, n):
    zero = torch.zeros(1, dtype=torch.int64)
    first = torch.cat([zero, torch.cumsum(lengths, 0)])
    second = F.pad(lengths.cumsum(0), (1, 0))
    third = torch.cat([zero, torch.cumsum(lengths, 0).to(torch.int32).to(torch.int64)])
    out = attend(pad(q, first, n), pad(k, second, n), pad(v, third, n))
    return unpad(out, second, q.shape[0])


@jagged("qk", q="l h d", k="l h d", v="l h e", lengths="lengths", n="scalar: n")
def offsets_joined_by_keywords(q, k, v, lengths, n):
    zero = lengths.new_zeros(1)
    first = torch.cat(tensors=[zero, lengths.cumsum(0)], dim=0)
    second = F.pad(input=torch.cumsum(input=lengths, dim=0), pad=(1, 0), value=0)
    third = torch.hstack(tensors=[zero, lengths.cumsum(0)])
    out = attend(pad(q, first, n), pad(k, second, n), pad(v, third, n))
    return unpad(out, torch.concatenate(tensors=[zero, lengths.cumsum(0)]), q.shape[0])


@jagged("qk", q="l h d", k="l h d", v="l h e", lengths="lengths", n="scalar: n")
def offsets_summed_with_their_zero(q, k, v, lengths, n):
    """Twice in each of two spellings: rows by the one, keys by the other."""
    padded = lambda: F.pad(lengths, (1, 0)).cumsum(0)
    joined = lambda: torch.cat([lengths.new_zeros(1), lengths]).cumsum(0)
    out = attend(pad(q, padded(), n), pad(k, joined(), n), pad(v, joined(), n))
    return unpad(out, padded(), q.shape[0])


@jagged("q", "JAGGED_OFFSETS", q="l h d", k="l h d", v="l h e", lengths="lengths", n="scalar: n")
def lengths_changed_between_two_offsets(q, k, v, lengths, n):
    lengths = lengths.clone()
    first = F.pad(lengths.cumsum(0), (1, 0))
    lengths[0] += lengths[1]
    lengths[1] = 0
    second = F.pad(lengths.cumsum(0), (1, 0))
    out = attend(pad(q, second, n), pad(k, first, n), pad(v, second, n))
    return unpad(out, second, q.shape[0])


@jagged("qk")
def offsets_of_another_dtype(q, k, v, offsets, n):
    narrow = offsets.to(torch.int32)
    out = attend(pad(q, offsets, n), pad(k, narrow, n), pad(v, narrow, n))
    return unpad(out, offsets, q.shape[0])


@jagged("qk")
def sizes_are_read_on_the_way(q, k, v, offsets, n):
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)))
    return unpad(out.reshape(out.size(0), out.size(1), -1), offsets, q.shape[0])


# One side


@jagged("q", q="l h d", k="b m h d", v="b m h e", offsets="offsets", n="scalar: n")
def short_dense_keys(q, k, v, offsets, n):
    """PFFN: two generated matrices for every sequence."""
    return unpad(attend(pad(q, offsets, n), k, v, torch.relu), offsets, q.shape[0])


@jagged("k", **SEEDS)
def shared_seeds(q, k, v, offsets, n):
    """PMA: a few learned queries, the same for the whole batch."""
    scores = torch.einsum("shd,bmhd->bhsm", q, pad(k, offsets, n))
    return torch.einsum("bhsm,bmhe->bshe", F.gelu(scores, approximate="tanh"), pad(v, offsets, n))


@jagged("k", **{**SEEDS, "q": "b s h d"})
def few_new_queries(q, k, v, offsets, n):
    return attend(q, pad(k, offsets, n), pad(v, offsets, n)).flatten(2)


@jagged("k", **{**SEEDS, "q": "h d"})
def one_seed(q, k, v, offsets, n):
    weights = F.silu(torch.einsum("hd,bmhd->bhm", q, pad(k, offsets, n)))
    return torch.einsum("bhm,bmhe->bhe", weights, pad(v, offsets, n))


@jagged("k", q="b d", k="l d", v="l e", offsets="offsets", n="scalar: n")
def one_target_for_each_history(q, k, v, offsets, n):
    """DIN: what is to be ranked attends to what was clicked."""
    weights = torch.sigmoid(torch.einsum("bd,bmd->bm", q, pad(k, offsets, n)))
    return torch.einsum("bm,bme->be", weights, pad(v, offsets, n))


@jagged("qk", **SELF, times="l")
def a_padded_operand_that_is_looked_up(q, k, v, offsets, n, times):
    at = pad(times.unsqueeze(1), offsets, n).squeeze(-1)
    b, m = torch.arange(at.shape[0])[:, None, None], torch.arange(n)
    scores = torch.einsum("bnhd,bmhd->bhnm", pad(q, offsets, n), pad(k, offsets, n))
    out = torch.einsum(
        "bhnm,bmhe->bnhe", F.silu(scores) * at[b, m].unsqueeze(1), pad(v, offsets, n)
    )
    return unpad(out, offsets, q.shape[0])


@jagged("", "JAGGED_OPERAND", **{**SELF, "w": "d d"})
def projected_behind_the_padding(q, k, v, offsets, n, w):
    q, k, v = pad(q, offsets, n) @ w, pad(k, offsets, n) @ w, torch.tanh(pad(v, offsets, n))
    return attend(q, k, v)


@jagged("k", "JAGGED_OUTPUT")
def padded_output(q, k, v, offsets, n):
    """Rows of padding have values too: act(0) times the sum of V."""
    return attend(*(pad(x, offsets, n) for x in (q, k, v)), torch.sigmoid)


@jagged("k", "JAGGED_OUTPUT")
def output_used_twice(q, k, v, offsets, n):
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)), torch.sigmoid)
    return unpad(out, offsets, q.shape[0]), out.sum()


@jagged("k", "JAGGED_OUTPUT")
def norm_before_unpadding(q, k, v, offsets, n):
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)))
    return unpad(out / (1 + out.abs().amax()), offsets, q.shape[0])


@jagged("k", "JAGGED_OFFSETS", **SELF, other="other")
def output_unpadded_by_other_offsets(q, k, v, offsets, n, other):
    return unpad(attend(*(pad(x, offsets, n) for x in (q, k, v))), other, q.shape[0])


@jagged("q", "JAGGED_FILL")
def values_padded_with_ones(q, k, v, offsets, n):
    ones = PadOnes.apply(v.flatten(1), offsets, n).unflatten(2, v.shape[1:])
    return unpad(attend(pad(q, offsets, n), pad(k, offsets, n), ones), offsets, q.shape[0])


def _by_tokens(q, k, v, offsets, n, weight):
    out = attend(*(pad(x, offsets, n) for x in (q, k, v)), weight)
    return unpad(out, offsets, q.shape[0])


@jagged("", "JAGGED_FILL", **SELF, w="l")
def divided_by_tokens_of_rows(q, k, v, offsets, n, w):
    """0/0 in rows of padding: zeros that come in there make NaN of every key's gradient."""
    divisor = pad(w, offsets, n)[:, None, :, None]
    return _by_tokens(q, k, v, offsets, n, lambda s: F.silu(s / divisor))


@jagged("", "JAGGED_FILL", **SELF, w="l")
def divided_by_tokens_of_keys(q, k, v, offsets, n, w):
    divisor = pad(w, offsets, n)[:, None, None]
    return _by_tokens(q, k, v, offsets, n, lambda s: F.silu(s / divisor))


@jagged("", "JAGGED_FILL", **SELF, w="l")
def divided_by_what_tokens_have_in_common(q, k, v, offsets, n, w):
    """Of two tokens only one must be padding."""
    w = pad(w, offsets, n)
    return _by_tokens(q, k, v, offsets, n, lambda s: s / (w[:, None, :, None] * w[:, None, None]))


@jagged("qk", **SELF, w="l")
def divided_by_tokens_above_zero(q, k, v, offsets, n, w):
    divisor = pad(w, offsets, n).abs()[:, None, :, None] + 1.0
    return _by_tokens(q, k, v, offsets, n, lambda s: F.silu(s / divisor))


@jagged("", "JAGGED_FILL", **SELF, w="l")
def times_the_inverse_of_tokens(q, k, v, offsets, n, w):
    """The infinity is made before the scores."""
    inverse = pad(w, offsets, n).abs().log().neg()[:, None, None].float().double()
    return _by_tokens(q, k, v, offsets, n, lambda s: F.silu(s * inverse))


@jagged("qk", **SELF, w="l")
def divided_by_tokens_padded_with_ones(q, k, v, offsets, n, w):
    divisor = PadOnes.apply(w[:, None], offsets, n)[:, None]
    return _by_tokens(q, k, v, offsets, n, lambda s: F.silu(s / divisor))


@jagged("q", "JAGGED_OFFSETS", **SELF, other="other")
def keys_padded_by_other_offsets(q, k, v, offsets, n, other):
    out = attend(pad(q, offsets, n), pad(k, other, n), pad(v, offsets, n))
    return unpad(out, offsets, q.shape[0])


@jagged("q", "JAGGED_OPERAND")
def keys_changed_after_padding(q, k, v, offsets, n):
    moved = pad(k, offsets, n).roll(1, dims=1)
    return unpad(attend(pad(q, offsets, n), moved, pad(v, offsets, n)), offsets, q.shape[0])


@jagged("", "JAGGED_OUTPUT", "JAGGED_LAYOUT")
def attention_across_the_batch(q, k, v, offsets, n):
    q, k, v = (pad(x, offsets, n).transpose(0, 1) for x in (q, k, v))
    return attend(q, k, v)


@jagged("q", "GRAD_MODE", q="l d", k="l d", v="l e", offsets="offsets", n="scalar: n")
def padded_without_gradient(q, k, v, offsets, n):
    with torch.no_grad():
        fixed = Pad.apply(v, offsets, n)
    out = torch.tanh(pad(q, offsets, n) @ pad(k, offsets, n).mT) @ fixed
    return unpad(out, offsets, q.shape[0])


@jagged("q", "MUTATED_OPERAND")
def values_changed_after_padding(q, k, v, offsets, n):
    v = v * 1.0
    stored = pad(v, offsets, n)
    v.mul_(2.0)
    return unpad(attend(pad(q, offsets, n), pad(k, offsets, n), stored), offsets, q.shape[0]), v


@jagged("q", "JAGGED_OPERAND")
def padded_keys_changed_in_place(q, k, v, offsets, n):
    keys = pad(k, offsets, n).clone()
    keys[:, 0] = 0.0
    return unpad(attend(pad(q, offsets, n), keys, pad(v, offsets, n)), offsets, q.shape[0])
