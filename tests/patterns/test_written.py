"""An operand is called what the user calls it, or by its line; never what it is not."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gdpa_inductor

N = 16
Q, K, V = torch.randn(3, 2, 2, N, 8)
PLACES, FEATURES, MASK = torch.randn(N, N), torch.randn(N, 4), torch.rand(N, N) < 0.5


scope: dict = {}
exec(
    compile("def library(x): return x.cos() + x.sin()", "/site-packages/library.py", "exec"), scope
)
LIBRARY = scope["library"]


class Model(nn.Module):
    """`bias` is given one of the biases below."""

    def __init__(self, bias):
        super().__init__()
        self.bias, self.scale = bias, nn.Parameter(torch.ones(N))
        self.bilinear = nn.Bilinear(4, 4, N)
        self.linear, self.norm = nn.Linear(4, N), nn.LayerNorm(N)
        self.mlp = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, N))

    def forward(self, q, k, v):
        return F.silu(q @ k.mT + self.bias(self)) @ v


def assigned(m):
    table = m.linear(FEATURES) - PLACES
    return table


def over_two_lines(m):
    table = torch.where(
        MASK,
        PLACES, 0.0)  # fmt: skip
    return table


def attribute(m):
    return m.scale


def module(m):
    return m.linear(FEATURES)


def normalised(m):
    return m.norm(PLACES)


def several_modules(m):
    return m.mlp(FEATURES)


def inside_of_a_library(m):
    """One that adds: it is not the sum of its arguments."""
    return LIBRARY(PLACES + PLACES)


def inside_of_a_module(m):
    return m.bilinear(FEATURES + FEATURES, FEATURES)


def in_brackets(m):
    return (~MASK).float().cumsum(0)


def in_a_chain(m):
    return PLACES.cos().sin()


def twice(m):
    return PLACES.sin().sin()


def unpacked(m):
    first, second = PLACES.cumsum(0).chunk(2, -1)
    return torch.cat([second, first], -1)


def added_in_place(m):
    table = PLACES.cumsum(0)
    table += PLACES.cumsum(1)
    return table.cos()


def not_ascii(m):
    return {"é": PLACES.cumsum(0)}["é"]


def too_long(m):
    return torch.where(MASK & MASK & MASK, PLACES.cos(), PLACES.cos().cos().cos().cos().cos().cos())


@pytest.mark.parametrize(
    ("bias", "name"),
    [
        (assigned, "table"),
        (over_two_lines, "table"),
        (attribute, "self.scale"),
        (module, "m.linear(FEATURES)"),
        (normalised, "m.norm(PLACES)"),
        (inside_of_a_library, "in `return LIBRARY(PLACES + PLACES)`"),
        (inside_of_a_module, "m.bilinear(FEATURES + FEATURES, FEATURES)"),
        (several_modules, "in `return m.mlp(FEATURES)`"),
        (in_brackets, "(~MASK).float().cumsum(0)"),
        (in_a_chain, "PLACES.cos().sin()"),
        (twice, "in `return PLACES.sin().sin()`"),
        (unpacked, "torch.cat([second, first], -1)"),
        (added_in_place, "table.cos()"),
        (not_ascii, 'in `return {"é": PLACES.cumsum(0)}["é"]`'),
        (too_long, "in `return torch.where(MASK & MASK & MASK, PLACES.cos(), PLAC...`"),
    ],
)
def test_an_operand_has_the_name_that_the_user_gave(bias, name: str) -> None:
    report = gdpa_inductor.explain(Model(bias), profit=False)(Q, K, V)
    assert len(report.matches) == 1, report
    (line,) = [line for line in str(report).splitlines() if line.strip().startswith("a0")]
    assert re.fullmatch(r"a0 (?:= )?(.*), test_written.py:\d+, float32 .*", line.strip())[1] == name
