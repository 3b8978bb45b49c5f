"""Functions of a table's element, which a kernel computes as it copies the table."""

import pytest
import torch

from gdpa_inductor.program.elements import of_elements
from gdpa_inductor.program.expr import SCORE, call, fold, postorder, torch_apply
from gdpa_inductor.program.score_mod import ScoreMod

FIRST, SECOND = "lookup(a0,add(sub(q_idx,kv_idx),9))", "lookup(a1,a2)"
OPERANDS = "a0:f[t]; a1:f[t]; a2:i[q_idx,kv_idx]; "
TANH = "tanh(mul(add(add(mul(s,0.25),bf16({})),bf16({})),0.5))"
CASES = {  # program, functions of elements, multiplications that are left
    "roundings": (f"add(s,add(bf16({FIRST}),bf16({SECOND})))", ["bf16(s)"] * 2, 0),
    "roundings and halves": (TANH.format(FIRST, SECOND), ["mul(bf16(s),0.5)"] * 2, 1),
    "a function of constants": (f"add(s,relu(mul({FIRST},3.0)))", ["relu(mul(s,3.0))"], 0),
    "an element twice": (f"add(mul(s,{FIRST}),relu({FIRST}))", [], 1),
    "twice in one function": (f"add(s,mul(relu({FIRST}),{FIRST}))", ["mul(relu(s),s)"], 0),
    "a third": (f"mul(add(s,{FIRST}),0.3)", ["s"], 1),
    "a sum with two others": (f"mul(add(add(s,{FIRST}),mul(s,s)),0.5)", ["s"], 2),
    "a sum twice": (f"add(mul(add(s,{FIRST}),0.5),add(s,{FIRST}))", ["s"], 1),
    "a difference": (f"mul(sub({FIRST},mul(s,3.0)),-2.0)", ["mul(s,-2.0)"], 1),
    "a condition": (f"where(gt({FIRST},0.0),s,0.0)", ["s"], 0),
    "a mask": (f"where(ge(q_idx,kv_idx),mul({FIRST},2.0),s)", ["mul(s,2.0)"], 0),
    "the element alone": (FIRST, ["s"], 0),
}


@pytest.mark.parametrize("name", CASES)
def test_functions_of_elements(name: str) -> None:
    text, functions, products = CASES[name]
    weight = ScoreMod.parse(OPERANDS + text).weight
    (root,), found = of_elements([weight], {0, 1})
    expected = [ScoreMod.parse(x).weight for x in functions]
    assert [found[number] for number in sorted(found)] == expected
    assert sum(x.op == "mul" for x in postorder([root])) == products
    tables = torch.randn(2, 20, dtype=torch.float64)
    changed = torch.stack([element(found.get(i, SCORE), tables[i]) for i in range(2)])
    torch.testing.assert_close(values(root, changed), values(weight, tables), rtol=0, atol=0)


def values(term, tables: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    place = torch.arange(9)
    known = {
        "s": torch.randn(9, 9, dtype=torch.float64), "q_idx": place[:, None], "kv_idx": place,
    }  # fmt: skip
    index = torch.randint(0, 20, (9, 9))

    def leaf(node):
        if node.op == "aux":
            return tables[node.value] if node.kind == "t" else index
        return known[node.op] if node.op in known else torch.tensor(node.value)

    return fold([term], leaf, torch_apply(torch.float64))[0]


def element(function, elements: torch.Tensor) -> torch.Tensor:
    leaf = lambda node: elements if node is SCORE else torch.tensor(node.value)
    return fold([function], leaf, torch_apply(torch.float64))[0]


def test_tables_that_no_kernel_copies_keep_their_functions() -> None:
    weight = ScoreMod.parse(OPERANDS + TANH.format(FIRST, SECOND)).weight
    (root,), found = of_elements([weight], {1})
    assert list(found) == [1]
    assert [x.op for x in postorder([root])].count("bf16") == 1
    (same,), none = of_elements([weight], ())
    assert same == weight and not none


def test_terms_share_a_table() -> None:
    """Variants of a program look up one copy, so they have to agree on it."""
    first = ScoreMod.parse(OPERANDS + f"add(s,bf16({FIRST}))").weight
    other = ScoreMod.parse(OPERANDS + f"add(s,{FIRST})").weight
    roots, found = of_elements([first, call("relu", first)], {0})
    assert "bf16" not in [x.op for x in postorder(roots)] and len(found) == 1
    assert of_elements([first, other], {0}) == ([first, other], {})
