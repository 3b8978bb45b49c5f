"""`bench models --train`: a whole recommender, and whether its curve is stock's."""

import dataclasses
from collections.abc import Callable

import pytest
import torch

from benchmarks import worker
from benchmarks.cases import Case
from benchmarks.models import summary, training
from benchmarks.suites import SEEDS, Selection, models

CASE = Case("recommender", "model", 4, 2, 64, 16, "float32", "cpu")


def test_lengths_are_those_of_movielens():
    drawn = torch.Generator().manual_seed(0)
    lengths = training.lengths(100_000, 10_000, drawn).double()
    # MovieLens-20M has 20,000,263 ratings of 138,493 users, each of whom has at least 20.
    assert lengths.min() == 20
    assert 0.8 < lengths.mean() / (20_000_263 / 138_493) < 1.25
    assert training.lengths(1000, 64, drawn).max() == 64


def test_each_item_is_followed_by_its_target():
    (batch,) = training.batches(CASE, 1)
    items, places, ends, target, negatives = batch
    assert len(items) == len(target) == len(places) == ends[-1]
    apart = (target - items) % training.ITEMS
    assert apart.min() >= 1 and apart.max() < 9
    inner = places[1:] > 0
    assert torch.equal(items[1:][inner], target[:-1][inner])
    assert places.max() < CASE.length and len(negatives) == training.NEGATIVES


def test_batches_are_the_same_for_every_seed():
    other = dataclasses.replace(CASE, seed=1)
    for a, b in zip(training.batches(CASE, 3), training.batches(other, 3), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture
def few_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be learned from few tokens."""
    for name, value in {"ITEMS": 64, "NEGATIVES": 32, "LAYERS": 2}.items():
        monkeypatch.setattr(training, name, value)


def test_it_learns(few_items: None):
    trained = training.train(CASE, lambda function: function, steps=30)
    assert sum(trained.losses[-5:]) < 0.95 * sum(trained.losses[:5])
    assert trained.tokens > 0 and len(trained.ms) <= 30
    again = training.train(CASE, lambda function: function, steps=3)
    assert again.losses == pytest.approx(trained.losses[:3], rel=1e-4)
    other = training.train(dataclasses.replace(CASE, seed=1), lambda function: function, steps=3)
    assert other.losses != again.losses


@pytest.mark.slow
def test_ours_trains_as_eager(few_items: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "STEPS", 20)
    job = worker.Job(CASE, ("gdpa-always", "eager"), ("train",))
    ours, eager = worker.run_job(job)
    assert not ours.error and not eager.error
    assert ours.regions and ours.losses == pytest.approx(eager.losses, rel=1e-3)


def test_the_largest_batch_is_found_by_doubling(few_items: None, monkeypatch: pytest.MonkeyPatch):
    tried: list[int] = []

    def full(function: Callable) -> Callable:
        def call(*operands: torch.Tensor) -> torch.Tensor:
            tried.append(len(operands[2]) - 1)
            if tried[-1] > 16:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return function(*operands)

        return call

    assert training.largest_batch(CASE, full) == 16
    assert tried == [4, 8, 16, 32]
    monkeypatch.setattr(training, "LARGEST", 8)
    assert training.largest_batch(CASE, lambda function: function) == 8
    with pytest.raises(RuntimeError, match="no kernel"):
        training.largest_batch(CASE, failing("no kernel"))
    assert training.largest_batch(CASE, failing("compiling: CUDA out of memory")) is None


def failing(why: str) -> Callable:
    def build(function: Callable) -> Callable:
        def call(*operands: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(why)

        return call

    return build


def test_a_curve_is_held_against_the_spread_of_seeds():
    curve = [2.0] * training.WINDOW + [1.0] * training.WINDOW
    moved = lambda by: [x + by for x in curve]
    stock = [curve, moved(-0.1)]
    assert training.off_curve([curve], stock) == 0
    assert training.off_curve([moved(0.05)], stock) == pytest.approx(0.5)
    assert training.off_curve([moved(0.2)], stock) == pytest.approx(2.0)
    assert training.off_curve([curve], [curve, curve]) == 0
    assert training.off_curve([moved(0.1)], [curve, curve]) == float("inf")


def test_means_of_several_seeds_are_compared():
    """Each of ours is as far from stock's as seeds are; together they are not."""
    flat = lambda level: [level] * training.WINDOW
    stock = [flat(2.0), flat(2.1), flat(2.2)]
    assert training.off_curve([flat(2.2), flat(2.0), flat(2.1)], stock) == pytest.approx(0)
    assert training.off_curve([flat(2.3), flat(2.4)], stock) == pytest.approx(1.5)


def test_seeds_that_meet_in_one_window_do_not_decide():
    """There stock's seeds are closer than two runs of one seed; elsewhere they are apart."""
    window = training.WINDOW
    stock = [[2.0] * window + [1.0] * window, [2.4] * window + [1.0001] * window]
    ours = [2.0] * window + [1.01] * window
    assert training.off_curve([ours], stock) == pytest.approx(0.025, rel=0.01)


def test_the_suite_trains_ours_and_stock_with_every_seed():
    """The first of ours and all of stock's come first: a verdict needs them."""
    jobs = models(Selection(device="cpu", seconds=0.1, train=True))
    assert [(job.contenders[0], job.case.seed) for job in jobs] == [
        ("gdpa-always", 0), *(("inductor", seed) for seed in range(SEEDS)),
        *(("gdpa-always", seed) for seed in range(1, SEEDS)), ("eager", 0),
    ]  # fmt: skip
    assert {job.measures for job in jobs} == {("train",)}


def test_the_largest_batch_comes_behind_all_curves():
    """What a run that is cut off has then are the curves."""
    jobs = models(Selection(device="cuda", seconds=0.1, train=True))
    assert [(job.contenders[0], *job.measures) for job in jobs] == [
        ("gdpa", "train"), *[("inductor", "train")] * SEEDS, *[("gdpa", "train")] * (SEEDS - 1),
        ("eager", "train"),
        ("gdpa", "largest"), ("inductor", "largest"),
    ]  # fmt: skip
    (alone,) = models(
        Selection("cuda", 0.1, contenders=("gdpa",), measures=("largest",), train=True)
    )
    assert alone.measures == ("largest",)


def measured(
    name: str, seed: int = 0, level: float = 2.0, measure: str = "train", **fields
) -> dict:
    case = dataclasses.asdict(dataclasses.replace(CASE, seed=seed))
    if measure == "train":
        fields = {"ms": 1.0, "losses": [level] * training.WINDOW, "tokens": 100.0, **fields}
    return dataclasses.asdict(worker.Measurement(case, name, measure, **fields))


def test_the_table_gives_the_verdict():
    stock = [measured("inductor", seed, 2.0 + seed / 10) for seed in range(3)]
    within = "within the spread of stock's seeds"
    assert f"{within}: 0.50" in summary.summary([measured("gdpa", 0, 2.1), *stock])
    assert "outside the spread" in summary.summary([measured("gdpa", 0, 2.5), *stock])
    both = [measured("gdpa", 0, 2.1), measured("gdpa", 2, 2.1)]
    assert f"{within}: 0.00" in summary.summary([*both, *stock, measured("eager", 0, 9.0)])
    off = [line[-1] for line in summary.trained([*both, *stock, measured("eager", 0, 2.2)])[1:]]
    assert off == ["0.50", "0.50", "", "", "", "1.00"]


def test_the_largest_batch_stands_beside_the_curve_of_its_seed():
    rows = [
        measured("gdpa"), measured("inductor"), measured("inductor", 1, 2.2),
        measured("gdpa", measure="largest", largest_batch=64),
        measured("inductor", measure="largest", error="it failed"),
    ]  # fmt: skip
    _, ours, stock, other = summary.trained(rows)
    assert ours == ["gdpa", "0", "1.00", "100", "", "64", "2.0000", "2.0000", "0.00"]
    assert stock[5] == "failed" and other[5] == "" and stock[-1] == ""


def test_a_run_that_failed_stands_in_the_table():
    assert summary.trained([measured("gdpa", error="it failed", losses=None)])[1][2] == "failed"
