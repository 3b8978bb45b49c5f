"""The demo's model: causal, a bias by distance, a loss only where there is a target."""

import torch

from examples.movielens.model import Recommender, RelativeBias


def test_bias_depends_on_head_and_distance_only():
    bias = RelativeBias(heads=2, length=5)()
    assert bias.shape == (2, 5, 5)
    for offset in range(-4, 5):
        for head in bias:
            assert head.diagonal(offset).unique().numel() == 1
    assert bias.unique().numel() == 2 * 9


def test_a_place_sees_nothing_that_follows():
    model = Recommender(items=30, length=12, width=8)
    history = torch.randint(1, 31, (2, 12))
    changed = history.clone()
    changed[:, 7:] = torch.randint(1, 31, (2, 5))
    before, after = model.encode(history), model.encode(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert (before[:, 7:] - after[:, 7:]).abs().max() > 1e-3


def test_loss_counts_only_places_with_a_target():
    model = Recommender(items=30, length=6, width=8)
    history = torch.randint(1, 31, (2, 6))
    target, negatives = torch.randint(1, 31, (2, 6)), torch.arange(1, 8)
    target[:, 4:] = 0
    short = model(history, target, negatives)
    short.backward()
    table = model.places.weight.grad
    assert table is not None
    assert table[:4].abs().sum() > 0
    assert table[4:].abs().sum() == 0
