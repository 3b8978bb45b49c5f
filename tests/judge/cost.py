"""What the judge costs on models that a user has: `python -m tests.judge.cost`.

Each model is captured in training. Its rewrites are then judged again and again, in a process that
has judged before; the median is taken. Printed too: what is left for a region where a node costs
0.3 ms. A verdict of an earlier process costs nothing (`judge.memory`), so that is not asked for.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from unittest import mock

import torch
from torch import nn

from benchmarks import models
from benchmarks.cases import Case
from gdpa_inductor import judge
from gdpa_inductor.options import Options
from gdpa_inductor.patterns.validation import rewrite_graph
from tests.clients import hstu

NODE_MS = 0.3
CASE = Case("none", "model", 2, 2, 128, head_dim=32, dtype="float32", device="cpu")


def sequential(name: str, depth: int) -> Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    def build() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        layers = [
            models.MODELS[name].build(CASE).function for _ in range(depth // 2)
        ]  # of two layers each
        return nn.Sequential(*layers), (torch.randn(2, CASE.length, CASE.heads * CASE.head_dim),)

    return build


def recommender() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return hstu.Recommender(), hstu.batch(2, 40)


MODELS = {
    "HSTU recommender": recommender,
    "HSTU, 8 layers": sequential("hstu-padded", 8),
    "GAU, 4 layers": sequential("gau-relu2", 4),
    "x-transformers, 4 layers": sequential("sigmoid-encoder", 4),
}


def cost(model: nn.Module, inputs: tuple[torch.Tensor, ...], turns: int) -> str:
    """A line of the table."""
    spent, seen, regions = [], 0, 0

    def timed(before, after, claims=None):
        nonlocal seen, regions
        for _ in range(turns + 1):
            start = time.perf_counter()
            verdict = judge.judged(before, after, claims)
            spent.append(1e3 * (time.perf_counter() - start))
        seen += len(before.graph.nodes)
        regions += str(after.code).count("gdpa.attention")
        return verdict

    def backend(gm, inputs):
        rewrite_graph(gm, options=Options(profit=False))
        return gm.forward

    torch._dynamo.reset()
    with mock.patch.object(judge, "validate", timed):
        torch.compile(model, backend=backend)(*inputs)
    total = statistics.median(spent[1:])
    left = (total - NODE_MS * seen) / max(regions, 1)
    return f"{regions:>8}{seen:>8}{total:>10.0f}{left:>14.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'model':26}{'regions':>8}{'nodes':>8}{'ms':>10}{'ms a region':>14}")
    for name, build in MODELS.items():
        if options.only in name:
            print(f"{name:26}{cost(*build(), options.turns)}", flush=True)


if __name__ == "__main__":
    main()
