"""Places of tables: what they vary along, and how they move."""

import pytest

from gdpa_inductor.program.places import by_distance, elements, of_integers
from gdpa_inductor.program.score_mod import ScoreMod, terms_text

DECLARED = "a0:f[h,t]; a1:i[b]; a2:i[b,q_idx,kv_idx]; a3:f[t]; add(s,lookup(a0,{}))"
APART = "sub(q_idx,kv_idx)"


def program(place: str) -> ScoreMod:
    return ScoreMod.parse(DECLARED.format(place))


@pytest.mark.parametrize(
    "place",
    [
        APART, "sub(kv_idx,q_idx)", f"add({APART},i0)", f"minimum(abs({APART}),7)",
        "sub(add(q_idx,3),kv_idx)", "add(neg(kv_idx),q_idx)", f"add({APART},mul(a1,h))", "4",
        f"int(log(float(add(abs({APART}),1))))", "add(sub(q_idx,kv_idx),sub(q_idx,kv_idx))",
    ],
)  # fmt: skip
def test_places_that_move_with_no_position(place: str) -> None:
    assert by_distance(program(place), 0)


@pytest.mark.parametrize(
    "place",
    [
        "q_idx", "add(q_idx,kv_idx)", "a2", f"add({APART},a2)", "sub(mul(q_idx,2),kv_idx)",
        "sub(minimum(q_idx,9),minimum(kv_idx,9))", "floordiv(q_idx,8)",
    ],
)  # fmt: skip
def test_places_that_may_move(place: str) -> None:
    assert not by_distance(program(place), 0)


def test_a_table_of_queries_moves() -> None:
    text = f"a0:f[q_idx,t]; add(s,lookup(a0,{APART}))"
    assert not by_distance(ScoreMod.parse(text), 0)


def test_axes_of_a_place() -> None:
    for place, axes in (("a2", {"b", "q_idx", "kv_idx"}), ("add(h,a1)", {"b", "h"}), ("3", set())):
        assert program(place).place_axes(0) == axes


def test_places_of_integers() -> None:
    assert of_integers(program(f"add({APART},a2)").places[0])
    assert not of_integers(program("int(s)").places[0])
    assert not of_integers(program("int(lookup(a3,h))").places[0])


def test_elements_stand_for_look_ups() -> None:
    mod = program(f"add({APART},a2)")
    assert terms_text(elements([mod.weight])) == "add(s,a0)"
    plain = ScoreMod.parse("a0:f[h]; silu(mul(s,a0))")
    assert elements([plain.weight]) == [plain.weight]
