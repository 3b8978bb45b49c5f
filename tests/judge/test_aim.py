"""Samples at which comparisons tie; test_mutations.py has masks that are wrong only there."""

import torch

from gdpa_inductor.judge.aim import gap
from gdpa_inductor.judge.samples import COUNT, Lanes

ADDRESS = torch.arange(COUNT) % 3


def test_a_gap_is_of_two_numbers():
    left, right = torch.tensor([3, 5]), torch.tensor([5.5, float("nan")])
    assert gap([left, right]).tolist() == [-2.5, 0.0]
    assert gap([left, 2]).tolist() == [1.0, 3.0]
    assert gap([left > 3, right > 3]) is None
    assert gap([left]) is None


def test_what_is_settled_is_not_moved():
    lanes = Lanes(0)
    settled = lanes.draw("settled", ADDRESS, torch.float32)
    roots = lanes.drawn
    free = lanes.draw("free", ADDRESS, torch.float32)
    lanes = lanes.shifted(torch.full((COUNT,), 1000.0, dtype=torch.float64), roots)
    again = [lanes.draw(name, ADDRESS, torch.float32) for name in ("settled", "free")]
    torch.testing.assert_close(again[0], settled, rtol=0, atol=0, equal_nan=True)
    moved = (again[1] - free).abs() > 100
    assert 0.3 < moved.float().mean() < 0.7


def test_an_element_is_moved_wherever_it_is_read():
    lanes = Lanes(0).shifted(torch.full((COUNT,), 7.0, dtype=torch.float64), set())
    one, other = (lanes.draw("root", address, torch.int64) for address in (ADDRESS, ADDRESS + 0))
    assert one.equal(other)
