"""A whole recommender in training: 8 layers of HSTU over jagged histories.

In: a case and a contender, which compiles the model. Out: `Trained`, or the largest batch that
fits.

Lengths of histories follow MovieLens-20M. Items are synthetic: each is near the one before, so that
there is something to learn. The seed of the case decides the parameters. The batches are the same
for every seed.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cases import Case, Function
from ..jagged import JaggedLayer, offsets
from ..measure import peak_extra_bytes

LAYERS, STEPS, NEGATIVES, LEARNING_RATE = 8, 200, 512, 1e-3
LARGEST = 1 << 16  # the largest batch that is tried
ITEMS = 26_744
# A log-normal fit to the number of MovieLens-20M's ratings per user, which is at least 20.
# Deviation, location and scale are from codex.lenskit.org/movielens/ML20M/description.html.
SPREAD, LOCATION, SCALE, SHORTEST = 1.609, 19.078, 43.087, 20
WINDOW = 20


@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of a training.

    losses:     The loss of every step.
    ms:         The milliseconds of every step that did not compile.
    compile_s:  The seconds of the steps that compiled.
    tokens:     Tokens per second, without the steps that compiled.
    peak:       Peak memory of a step in bytes, beyond that held before. None if it is unknown.
    """

    losses: list[float]
    ms: list[float]
    compile_s: float
    tokens: float
    peak: int | None


class JaggedRecommender(nn.Module):
    """The model. Histories of items [L] with offsets to the loss of predicting each next item."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width = case.heads * case.head_dim
        self.items, self.places = nn.Embedding(ITEMS, width), nn.Embedding(case.length, width)
        layer = dataclasses.replace(case, activation="silu")
        self.layers = nn.ModuleList(JaggedLayer(layer) for _ in range(LAYERS))
        for table in (self.items, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, *batch: Tensor) -> Tensor:
        return self.losses(*batch).mean()

    def losses(
        self, items: Tensor, places: Tensor, ends: Tensor, target: Tensor, negatives: Tensor
    ) -> Tensor:
        """The loss of each row [L]."""
        x = self.items(items) + self.places(places)
        for layer in self.layers:
            x = layer(x, ends)
        hidden = F.normalize(x, dim=-1)
        wanted, others = (F.normalize(self.items(i), dim=-1) for i in (target, negatives))
        positive = (hidden * wanted).sum(-1, keepdim=True)
        drawn = (hidden @ others.T).masked_fill(target[:, None] == negatives, -1e4)
        logits = torch.cat([positive, drawn], -1) / 0.1
        return (logits.logsumexp(-1) - logits[..., 0]).float()


def lengths(batch: int, longest: int, drawn: torch.Generator) -> Tensor:
    """Random lengths of histories as in MovieLens-20M, int64 [B].

    A longer history is cut to its newest `longest` items.
    """
    z = torch.randn(batch, generator=drawn)
    shortest = min(SHORTEST, longest)
    return (LOCATION + SCALE * torch.exp(SPREAD * z)).long().clamp(shortest, longest)


def batches(case: Case, steps: int) -> Iterator[tuple[Tensor, ...]]:
    """Batches as arguments of the recommender. Cases of the same sizes have the same batches."""
    drawn = torch.Generator().manual_seed(2025)
    for _ in range(steps):
        counts = lengths(case.batch, case.length, drawn)
        total = int(counts.sum())
        ends = offsets(counts).long()
        first = torch.repeat_interleave(ends[:-1], counts)
        apart = torch.randint(1, 9, (total,), generator=drawn).cumsum(0)
        start = torch.randint(ITEMS, (case.batch,), generator=drawn).repeat_interleave(counts)
        items = (start + apart - apart[first]) % ITEMS
        following = (items + torch.randint(1, 9, (total,), generator=drawn)) % ITEMS
        following[:-1] = torch.where(first[1:] == first[:-1], items[1:], following[:-1])
        negatives = torch.randint(ITEMS, (NEGATIVES,), generator=drawn)
        tensors = (items, torch.arange(total) - first, ends, following, negatives)
        moved = tuple(t.to(case.device) for t in tensors)
        for tensor in (moved[0], moved[1], moved[3]):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        yield moved


Step = Callable[[Sequence[Tensor]], Tensor]


def ready(case: Case, build: Callable[[Function], Function]) -> tuple[Step, torch.optim.Optimizer]:
    """A function that runs forward and backward of a batch and returns its loss; the optimizer."""
    torch.manual_seed(case.seed)
    model = JaggedRecommender(case).to(case.device)
    forward = build(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)

    def step(batch: Sequence[Tensor]) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(case.device, torch.bfloat16, enabled=case.dtype == "autocast"):
            loss = forward(*batch)
        loss.backward()
        return loss.detach()

    return step, optimizer


def train(case: Case, build: Callable[[Function], Function], steps: int | None = None) -> Trained:
    """Train with AdamW for `steps` steps, by default STEPS."""
    step, optimizer = ready(case, build)
    losses, seconds, tokens = [], [], []
    feed = list(batches(case, steps or STEPS))
    for batch in feed:
        start = time.perf_counter()
        loss = step(batch)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
        tokens.append(len(batch[0]))
    # A step that takes 10 times as long as the median step has compiled.
    usual = sorted(seconds)[len(seconds) // 2]
    settled = [(s, n) for s, n in zip(seconds, tokens, strict=True) if s < 10 * usual]
    return Trained(
        losses=losses,
        ms=[1e3 * s for s, _ in settled],
        compile_s=sum(seconds) - sum(s for s, _ in settled),
        tokens=sum(n for _, n in settled) / sum(s for s, _ in settled),
        peak=peak_extra_bytes(lambda: step(feed[-1]), case.device),
    )


def largest_batch(case: Case, build: Callable[[Function], Function]) -> int | None:
    """The largest batch that fits in training, found by doubling the batch of the case.

    It is None if the batch of the case does not fit.
    """
    step, optimizer = ready(case, build)
    fits, tried = None, case.batch
    while tried <= LARGEST:
        try:
            for batch in batches(dataclasses.replace(case, batch=tried), 1):
                torch._dynamo.maybe_mark_dynamic(batch[2], 0)  # one compile serves all batches
                step(batch).item()
                optimizer.step()
        except RuntimeError as error:
            if "out of memory" not in str(error):  # a compile wraps torch's own exception
                raise
            break
        fits, tried = tried, 2 * tried
    return fits


def off_curve(ours: Sequence[Sequence[float]], stock: Sequence[Sequence[float]]) -> float:
    """The distance of our mean loss curve from stock's, over the spread of stock's curves.

    Up to 1 our curve is within the spread. Distance and spread are averages over windows of WINDOW
    steps. The worst window would not do: in one of ten, three seeds are close by chance.

    ours:   Our curves.
    stock:  Stock's curves. The first ones have the seeds of ours.
    """
    apart, spread = 0.0, 0.0
    for start in range(0, len(ours[0]) - WINDOW + 1, WINDOW):
        mine, theirs = ([fmean(c[start : start + WINDOW]) for c in cs] for cs in (ours, stock))
        apart += abs(fmean(mine) - fmean(theirs[: len(mine)]))
        spread += max(theirs) - min(theirs)
    return apart / spread if spread else float("inf") if apart else 0.0
