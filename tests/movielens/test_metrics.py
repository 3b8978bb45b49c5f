"""Ranking metrics against cases worked out by hand."""

import math

import pytest
import torch

from examples.movielens import data, metrics


def test_rank_ignores_what_was_seen_and_padding():
    #                       pad   1    2    3    4
    scores = torch.tensor([[9.0, 5.0, 4.0, 3.0, 2.0]])
    held_out, nothing_seen = torch.tensor([3]), torch.tensor([[0]])
    assert metrics.ranks(scores, held_out, nothing_seen).tolist() == [2]
    assert metrics.ranks(scores, held_out, torch.tensor([[1, 2]])).tolist() == [0]


def test_held_out_item_counts_though_seen_before():
    scores = torch.tensor([[0.0, 5.0, 4.0, 3.0]])
    assert metrics.ranks(scores, torch.tensor([2]), torch.tensor([[2, 1]])).tolist() == [0]


def test_a_constant_scorer_ranks_last():
    scores = torch.zeros(1, 6)
    assert metrics.ranks(scores, torch.tensor([2]), torch.tensor([[0]])).tolist() == [4]


def test_hit_rate_and_gain():
    users = ((1, 2, 3), (2, 3, 4))
    found = data.Histories("two", users, 20)

    def scorer(history: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        assert history[torch.arange(2), last].tolist() == [2, 3]
        scores = torch.zeros(2, 21)
        scores[:, 3] = 1.0  # first for user 0; user 1 has seen it
        scores[1, 5] = 1.0  # a better one than user 1's item 4, which is second
        scores[1, 4] = 0.5
        return scores

    got = metrics.evaluate(found, scorer, length=8, k=2)
    assert got == pytest.approx({"HR@2": 1.0, "NDCG@2": (1.0 + 1.0 / math.log2(3)) / 2})
    assert metrics.evaluate(found, scorer, length=8, k=1)["HR@1"] == 0.5


def test_a_sample_is_of_users_far_and_wide():
    all_users = data.Histories("ten", tuple((n, n) for n in range(10)), 20)
    assert [u[0] for u in all_users.sample(3).users] == [0, 3, 6]
    assert all_users.sample(0) == all_users.sample(10) == all_users.sample(11) == all_users


def test_popularity_does_not_see_the_held_out_item():
    found = data.Histories("two", ((1, 2, 3), (1, 4, 3)), 4)
    scores = metrics.popularity(found)(torch.zeros(2, 3), torch.zeros(2))
    assert scores[0].tolist() == [0.0, 2.0, 1.0, 0.0, 1.0]
