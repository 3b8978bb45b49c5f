"""explain leaves no trace: on the model, its inputs, random numbers, and what was compiled."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

import gdpa_inductor
from gdpa_inductor._compat.subclasses import strided_parts

from .test_explain import Block, X

pytestmark = pytest.mark.usefixtures("no_cpu_cost_model")


def snapshot(model: nn.Module) -> dict[str, object]:
    tensors = {
        n: t.detach().clone() for n, t in [*model.named_parameters(), *model.named_buffers()]
    }
    return {**tensors, "calls": model.calls, "training": model.training}


def same(left: dict[str, object], right: dict[str, object]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(x, right[n]) if isinstance(x, torch.Tensor) else x == right[n]
        for n, x in left.items()
    )


def test_the_model_is_left_as_it_was() -> None:
    model = Block()
    model(X).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    before, inputs = snapshot(model), X.clone()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    gdpa_inductor.explain(model)(inputs)
    assert same(before, snapshot(model))
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients))
    assert torch.equal(inputs, X)
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert (states[2] == np.random.get_state()[1]).all()
    assert not model._buffers and model.norm.num_batches_tracked.item() == 1


def test_a_training_step_is_undone() -> None:
    model = Block()
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)

    def step(x):
        x.mul_(2)
        loss = model(x).sum()
        loss.backward()
        optimiser.step()
        random.random()
        return loss

    before, inputs = snapshot(model), X.clone()
    gdpa_inductor.explain(step)(inputs)
    assert same(before, snapshot(model)) and torch.equal(inputs, X)
    assert all(p.grad is None for p in model.parameters())


def test_nested_inputs_are_put_back() -> None:
    rows = [torch.randn(n, 2, 16) for n in (5, 7)]
    query = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)

    def step(x):
        with torch.no_grad():
            x.values().mul_(2)
        return gdpa_inductor.attention(x, x, x, score_mod=lambda s, *_: F.silu(s))

    report = gdpa_inductor.explain(step, profit=False)(query)
    assert len(report.matches) == 1
    assert torch.equal(query.detach().values(), torch.cat(rows))


LAYOUTS = {
    "nested": lambda: torch.nested.nested_tensor([torch.ones(5, 16), torch.ones(7, 16)]),
    "coo": lambda: torch.eye(16).to_sparse(),
    "uncoalesced": lambda: torch.sparse_coo_tensor([[1, 1], [0, 0]], [1.0, 2.0], (16, 16)),
    "csr": lambda: torch.eye(16).to_sparse_csr(),
    "csc": lambda: torch.eye(16).to_sparse_csc(),
    "bsr": lambda: torch.eye(16).to_sparse_bsr((4, 4)),
    "bsc": lambda: torch.eye(16).to_sparse_bsc((4, 4)),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_of_every_layout_are_put_back(layout: str) -> None:
    """`torch.equal` takes strided tensors only: `explain` crashed on others."""
    value = LAYOUTS[layout]()
    before = [part.clone() for part in strided_parts(value)]

    def step(x, q):
        strided_parts(x)[0].mul_(2)
        return F.silu(q @ q.mT) @ q

    assert isinstance(gdpa_inductor.explain(step)(value, X), gdpa_inductor.Report)
    after = strided_parts(value)
    assert len(before) > 1 and all(map(torch.equal, before, after))


def test_what_was_compiled_stays_compiled() -> None:
    def function(x):
        return F.silu(x @ x.mT) @ x

    compiles = []

    def backend(gm, example_inputs):
        compiles.append(gm)
        return gm.forward

    compiled = torch.compile(function, backend=backend)
    compiled(X)
    counters["mine"]["kept"] += 1
    before = {name: dict(counter) for name, counter in counters.items()}
    for _ in range(12):  # more often than Dynamo's recompile limit
        assert len(gdpa_inductor.explain(compiled)(X).matches) == 1
    assert {name: dict(counter) for name, counter in counters.items()} == before
    compiled(X)
    assert len(compiles) == 1
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        for length in range(20, 26):  # still six of the eight that the user has
            compiled(X[:, :length])
    assert len(compiles) == 7


def test_an_error_of_the_model_is_the_users() -> None:
    def function(x):
        raise KeyError("of the model")

    model = Block(between=function)
    before = snapshot(model)
    with pytest.raises(KeyError, match="of the model"):
        gdpa_inductor.explain(model)(X)
    assert same(before, snapshot(model))
