"""Rows that no sequence owns, as `docs/recipes/cuda_graphs.md` pads batches: they change nothing,
have no gradient, and batches of a size share a compile.
"""

import copy

import pytest
import torch
from torch import Tensor

import gdpa_inductor
from tests._judge import check_step
from tests._recorder import Recorder
from tests.jagged import pad, unpad
from tests.padded_rows import SIZES, batches, recipe, step

pytestmark = pytest.mark.usefixtures("no_cpu_cost_model")
ENDS, ROWS, MORE, N, WIDTH = torch.tensor([0, 7, 7, 19, 20]), 20, 12, 12, 16


def test_padded_batches_train_as_those_that_are_not() -> None:
    of = recipe()
    model = of.Recommender()
    exact, recorder = copy.deepcopy(model).double(), Recorder()
    compiled = torch.compile(model, backend=recorder)
    sizes = set()
    for items, following, offsets in batches(of):
        batch = of.padded(items), of.padded(following), offsets
        sizes.add(len(batch[0]))
        mine = step(model, compiled, batch)
        eager, truth = (step(m, m, (items, following, offsets)) for m in (model, exact))
        check_step(mine, eager, truth)
    assert len(sizes) == SIZES
    assert len(recorder.graphs) == len(recorder.matches) == 1


def test_what_padded_rows_hold_does_not_matter() -> None:
    of = recipe()
    model = of.Recommender()
    compiled = torch.compile(model, backend=Recorder())
    for items, following, offsets in batches(of):
        first, second = of.padded(items), of.padded(following)
        other = [x.clone() for x in (first, second)]
        for x in other:
            x[len(items) :] = of.ITEMS - 1
        results = step(model, compiled, (first, second, offsets))
        again = step(model, compiled, (*other, offsets))
        assert all(map(torch.equal, results.values(), again.values()))


def direct(q: Tensor, k: Tensor, v: Tensor, ends: Tensor) -> Tensor:
    return gdpa_inductor.attention(
        q, k, v, score_mod=lambda s, b, h, q_idx, kv_idx: torch.relu(s).square(),
        cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=N, max_seqlen_k=N,
    )  # fmt: skip


def as_models_pad(q: Tensor, k: Tensor, v: Tensor, ends: Tensor) -> Tensor:
    dense = (pad(x, ends, N).transpose(1, 2) for x in (q, k, v))
    query, key, value = dense
    out = torch.relu(query @ key.mT).square() @ value
    return unpad(out.transpose(1, 2), ends, q.shape[0])


@pytest.mark.parametrize("attend", [direct, as_models_pad])
@pytest.mark.parametrize("last", ["of none", "of their own sequence"])
def test_rows_keep_their_bits_and_padded_ones_have_no_gradient(attend, last: str) -> None:
    compiled = torch.compile(attend, backend="gdpa", options={"gdpa.expect": 1}, dynamic=True)
    rows = torch.randn(4, ROWS + MORE, 2, WIDTH)
    rows[:, ROWS:] = torch.nan if last == "of none" else 1.0
    ends = ENDS if last == "of none" else torch.cat([ENDS, ENDS.new_tensor([ROWS + MORE])])

    def trained(count: int, ends: Tensor) -> list[Tensor]:
        *operands, direction = (x[:count].clone().requires_grad_() for x in rows)
        out = compiled(*operands, ends)
        real = torch.arange(count)[:, None, None] < ROWS
        loss = torch.where(real, out * direction.detach(), 0.0).sum()
        return [out, *torch.autograd.grad(loss, operands)]

    exact, wider = trained(ROWS, ENDS), trained(ROWS + MORE, ends)
    assert all(torch.equal(x, y[:ROWS]) for x, y in zip(exact, wider, strict=True))
    padded = wider if last == "of none" else wider[1:]
    assert not any(x[ROWS:].any() for x in padded)
