"""HR@k and NDCG@k of the held-out last item, ranked among all items that the user has not seen."""

from collections.abc import Callable

import torch
from torch import Tensor

from .data import Histories, pad

Scorer = Callable[[Tensor, Tensor], Tensor]


def ranks(scores: Tensor, targets: Tensor, seen: Tensor) -> Tensor:
    """The ranks of the held-out items, int64 [B]. Rank 0 is the best.

    A tie counts against the held-out item, so with constant scores it ranks last.

    scores:    The scores of all items, [B, items + 1].
    targets:   The ids of the held-out items, [B].
    seen:      The ids of items that do not compete, [B, L].
    """
    wanted = scores.gather(1, targets[:, None])
    scores = scores.scatter(1, seen, float("-inf"))
    scores[:, 0] = float("-inf")
    scores.scatter_(1, targets[:, None], float("-inf"))
    return (scores >= wanted).sum(1)


def evaluate(
    data: Histories, scorer: Scorer, length: int, k: int = 10, batch: int = 16, device: str = "cpu"
) -> dict[str, float]:
    """The means of HR@k and NDCG@k over all users.

    scorer:  `scorer(history [B, N], last [B])` returns scores [B, items + 1]. `last` is the last
             place of each history.
    length:  N.
    """
    parts: list[Tensor] = []
    for start in range(0, len(data.users), batch):
        users = data.users[start : start + batch]
        history = torch.tensor([pad(u[:-1], length) for u in users], device=device)
        last = torch.tensor([min(len(u) - 1, length) - 1 for u in users], device=device)
        targets = torch.tensor([u[-1] for u in users], device=device)
        longest = max(len(u) for u in users)
        seen = torch.tensor([pad(u[:-1], longest) for u in users], device=device)
        parts.append(ranks(scorer(history, last).float(), targets, seen).cpu())
    rank = torch.cat(parts)
    hit = (rank < k).double()
    gain = hit / torch.log2(rank.double() + 2)
    return {f"HR@{k}": hit.mean().item(), f"NDCG@{k}": gain.mean().item()}


def popularity(data: Histories) -> Scorer:
    """The scorer that a model has to beat. A score is the number of times an item was consumed."""
    counts = torch.zeros(data.items + 1)
    for user in data.users:
        counts += torch.bincount(torch.tensor(user[:-1]), minlength=data.items + 1)
    return lambda history, last: counts.to(history.device).expand(len(history), -1)
