"""Heads folded into the batch in many orders, of query, key and value alike or not, and unfolded in
as many: whatever is attended to what, values count. There are as many heads as sequences, so that
every order fits every other.
"""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

B = H = 2
D, ROWS, KEYS = 3, 4, 5

# [B, N, H·D] to [H·B, N, D] or [B·H, N, D]
FOLDS: dict[str, Callable[[Tensor], Tensor]] = {
    "split": lambda x: torch.cat(x.split(D, 2), 0),
    "chunk": lambda x: torch.cat(list(x.chunk(H, -1))),
    "split_backwards": lambda x: torch.cat(x.split(D, 2)[::-1], 0),
    "slices": lambda x: torch.cat([x[..., i * D : (i + 1) * D] for i in range(H)], 0),
    "slices_rotated": lambda x: torch.cat([x[..., i * D : (i + 1) * D] for i in (1, 0)], 0),
    "strided": lambda x: torch.cat([x[..., i::H] for i in range(H)], 0),
    "stack": lambda x: torch.stack(x.split(D, 2)).flatten(0, 1),
    "stack_inside": lambda x: torch.stack(x.split(D, 2), 1).flatten(0, 1),
    "heads_first": lambda x: x.unflatten(2, (H, -1)).permute(2, 0, 1, 3).flatten(0, 1),
    "heads_second": lambda x: x.unflatten(2, (H, -1)).transpose(1, 2).flatten(0, 1),
    "channels_first": lambda x: x.unflatten(2, (-1, H)).permute(3, 0, 1, 2).flatten(0, 1),
    "along_rows": lambda x: torch.cat(x.split(D, 2), 1).view(B, H, -1, D).flatten(0, 1),
    "rows_then_heads": lambda x: torch.cat(x.split(D, 2), 1).reshape(B * H, -1, D),
}
# and back to [B, M, H·D]
UNFOLDS: dict[str, Callable[[Tensor], Tensor]] = {
    "split": lambda o: torch.cat(o.split(B, 0), 2),
    "chunk": lambda o: torch.cat(o.chunk(H), -1),
    "split_backwards": lambda o: torch.cat(o.split(B, 0)[::-1], 2),
    "every_other": lambda o: torch.cat([o[i::H] for i in range(H)], 2),
    "heads_first": lambda o: o.unflatten(0, (H, B)).permute(1, 2, 0, 3).flatten(2),
    "heads_second": lambda o: o.unflatten(0, (B, H)).transpose(1, 2).flatten(2),
    "stack": lambda o: torch.stack(o.split(B, 0), 2).flatten(2),
    "stack_last": lambda o: torch.stack(o.chunk(H), -1).flatten(2),
    "along_rows": lambda o: torch.cat(o.split(B, 0), 1),
}


def program(query: str, key: str, value: str, back: str) -> Callable[..., Tensor]:
    """Attention whose operands are folded in these ways, with a bias of each of the batch."""

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        s = torch.bmm(FOLDS[query](q), FOLDS[key](k).transpose(1, 2)) + bias.repeat(H, 1, 1)
        return UNFOLDS[back](torch.bmm(F.silu(s), FOLDS[value](v)))

    attend.__name__ = f"folded_{query}_{key}_{value}_{back}"
    return attend


def operands() -> tuple[Tensor, ...]:
    shapes = [(B, ROWS, H * D), (B, KEYS, H * D), (B, KEYS, H * D), (B, ROWS, KEYS)]
    return tuple(torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes)


_EACH = list(FOLDS)
_TURNED = zip(_EACH, _EACH[1:] + _EACH[:1], _EACH[2:] + _EACH[:2], itertools.cycle(UNFOLDS))
CASES = [
    *((program(fold, fold, fold, "split"), operands) for fold in FOLDS),
    *((program("split", "split", "split", back), operands) for back in UNFOLDS if back != "split"),
    *((program(*ways), operands) for ways in _TURNED),
]
MORE = [
    (program(q, k, v, back), operands)
    for q, k, v in itertools.product(("split", "slices_rotated", "heads_second"), repeat=3)
    for back in UNFOLDS
]
