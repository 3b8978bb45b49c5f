"""The recipe `docs/recipes/cuda_graphs.md` on a GPU: batches of other lengths and other rows under
CUDA graphs train as they do without.
"""

import copy

import pytest
import torch

from tests.gpu import checks
from tests.padded_rows import SIZES, batches, recipe, step

pytestmark = pytest.mark.cuda


def test_padded_batches_replay_graphs() -> None:
    of = recipe()
    model = of.Recommender().to(of.device)
    plain = checks.compiled(model)
    feed = [(of.padded(x), of.padded(y), offsets) for x, y, offsets in batches(of)]
    assert len({len(items) for items, *_ in feed}) == SIZES
    wanted = [step(model, plain, batch) for batch in feed]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    twin = copy.deepcopy(model)
    recorded = checks.compiled(twin, mode="reduce-overhead")
    for _ in range(4):  # the first runs of a size warm up and record
        for batch, want in zip(feed, wanted, strict=True):
            results = step(twin, recorded, batch)
            # The gradient of an embedding is a sum by atomics.
            torch.testing.assert_close(results, want, rtol=1e-4, atol=1e-5)
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == 1
    assert counters["inductor"]["cudagraph_skips"] == 0
