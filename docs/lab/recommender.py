"""A small recommender on a CPU, by rounding: `python docs/lab/recommender.py curves|gradients`.

curves: the mean loss of windows of 25 steps, of eager in fp32, and of Inductor and ours in bf16 by
autocast. gradients: at states of one training, the relative error of all gradients together from
fp64, and how much of the fp64 gradient is in them (1 is all).
"""

import copy
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.cases import Case
from benchmarks.contenders import CONTENDERS
from benchmarks.models import training

SIZES = (32, 2, 128, 32)  # histories, heads, the longest, head dim
ITEMS, STEPS, WINDOW, SEEDS = 2000, 300, 25, (0, 1)
NAMES = ("eager", "inductor", "gdpa-always")


def case(dtype: str, seed: int) -> Case:
    return Case("recommender", "model", *SIZES, dtype, "cpu", seed=seed)


def curves() -> None:
    for seed in SEEDS:
        for name, dtype in zip(NAMES, ("float32", "autocast", "autocast"), strict=True):
            torch._dynamo.reset()
            found = training.train(case(dtype, seed), CONTENDERS[name], STEPS)
            parts = torch.tensor(found.losses).view(-1, WINDOW).mean(1)
            print(f"{name}, {dtype}, seed {seed}:", *(f"{x:.2f}" for x in parts), flush=True)


def gradient(model: torch.nn.Module, forward: Callable, batch: tuple, cast: bool) -> Tensor:
    """Of all parameters, in fp64."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        loss = forward(*batch)
    loss.backward()
    return torch.cat([p.grad.double().flatten() for p in model.parameters()])


def gradients() -> None:
    of = case("autocast", 0)
    torch.manual_seed(0)
    model = training.JaggedRecommender(of)
    exact, others = copy.deepcopy(model).double(), {n: copy.deepcopy(model) for n in NAMES}
    forwards = {name: CONTENDERS[name](other) for name, other in others.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.LEARNING_RATE)
    *feed, batch = training.batches(of, 122)
    for step, each in enumerate(feed):
        if step % 20 == 0:
            exact.load_state_dict(model.state_dict())
            wanted = gradient(exact, exact, batch, False)
            for name, other in others.items():
                other.load_state_dict(model.state_dict())
                found = gradient(other, forwards[name], batch, True)
                error = (found - wanted).norm() / wanted.norm()
                share = found @ wanted / (wanted @ wanted)
                print(f"step {step}, {name}: {error:.4f}, {share:.4f}", flush=True)
        optimizer.zero_grad()
        model(*each).backward()
        optimizer.step()


if __name__ == "__main__":
    training.ITEMS = ITEMS
    {"curves": curves, "gradients": gradients}[sys.argv[1]]()
