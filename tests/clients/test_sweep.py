"""The sweep of other people's models: what a line of its file is, and what is printed of it."""

import re

from tests.clients import sweep

LINES = """
# a comment
tests.clients.hstu.Recommender() | randint(0, 40, (2, 9)), randint(0, 50, (2, 9)).cumsum(1)
Call(torch.nn.functional.softmax, dim=-1) | randn(2, 3)
no.such.Model() | randn(2)
"""


def told_of(tmp_path, capsys, *words: str) -> str:
    path = tmp_path / "models.txt"
    path.write_text(LINES)
    sweep.main(str(path), *words)
    return capsys.readouterr().out


def test_a_model_with_attention(tmp_path, capsys):
    printed = told_of(tmp_path, capsys, "Recommender")
    for mode in ("training", "evaluation"):
        line = re.search(
            rf"  {mode}: \d+ nodes, 2 fused, none refused, .* (\S+) from eager", printed
        )
        assert line and float(line[1]) < 1e-12, printed
    assert "    + " in printed and "softmax" not in printed


def test_models_without_any_and_that_fail(tmp_path, capsys):
    printed = told_of(tmp_path, capsys)
    assert "0 fused, none refused" in printed.partition("softmax")[2]
    assert "Error: name 'no' is not defined" in printed.partition("no.such.Model")[2]


def test_a_difference_is_a_part_of_the_largest_element():
    one, two = ({"x": sweep.torch.tensor([0.0, x])} for x in (4.0, 5.0))
    assert sweep.apart(one, two) == 0.2 and sweep.apart(two, two) == 0
    assert sweep.apart({}, two) == 1
    assert sweep.apart({"x": two["x"] * float("nan")}, two) == float("inf")
