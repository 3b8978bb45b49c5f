"""The backward in one kernel: where it is taken, in which order, and what it compiles to."""

import dataclasses

import pytest
import torch

from gdpa_inductor.kernels.triton.configs import Shape
from gdpa_inductor.lowerings.triton import five_matmul
from gdpa_inductor.lowerings.triton.five_matmul import FIVE_MATMUL, turns

from .cases import CAUSAL, Case
from .five_matmul_cases import CASES
from .jagged_cases import JaggedCase

(RULE,) = FIVE_MATMUL
PLAIN = Case("plain", "silu(mul(s,0.1))", m=512, n=512, b=99, h=4, d=128, dv=128)
JAGGED = JaggedCase("jagged", PLAIN.program, lengths_q=(512,) * 99, same=True, h=4, d=128, dv=128)


def alone(case: Case, dtype: torch.dtype = torch.bfloat16) -> bool:
    return any("SUMS" in text for text in case.sources(dtype).values())


def of(case: Case, **changes) -> Case:
    """The same with few heads on a device of one multiprocessor, which is as many as it needs."""
    few = {"b": 2, "h": 2, "m": 40, "n": 40, "processors": 1}
    return dataclasses.replace(case, **{**few, **changes})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_problems_of_the_interpreter_are_of_this_kernel(case: Case) -> None:
    assert alone(case, torch.float16)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(of(PLAIN, d=64), torch.bfloat16, id="head dim"),
        pytest.param(of(PLAIN, dv=160), torch.bfloat16, id="value dim"),
        pytest.param(of(PLAIN), torch.float32, id="dtype"),
        pytest.param(of(PLAIN, capability=80), torch.bfloat16, id="capability"),
        pytest.param(of(PLAIN, processors=2), torch.bfloat16, id="too few"),
        pytest.param(of(PLAIN, m=RULE.rows + 1), torch.bfloat16, id="rows"),
        pytest.param(of(PLAIN, n=RULE.keys + 1), torch.bfloat16, id="keys"),
        pytest.param(of(PLAIN, program=CAUSAL), torch.bfloat16, id="mask"),
        pytest.param(of(PLAIN, hk=1, hv=1), torch.bfloat16, id="heads"),
        pytest.param(of(PLAIN, bk=1), torch.bfloat16, id="shared"),
        pytest.param(of(PLAIN, needs="qv"), torch.bfloat16, id="needs"),
        pytest.param(
            of(PLAIN, program="a0:f[q_idx]; mul(silu(s),a0)", needs="qkv0"),
            torch.bfloat16,
            id="row sums",
        ),
    ],
)
def test_others_keep_their_kernels(case: Case, dtype: torch.dtype) -> None:
    assert alone(of(PLAIN))
    assert not alone(case, dtype)


def test_heads_of_the_greatest_length_count() -> None:
    lengths = {"same": True, "processors": 4, "h": 2, "d": 128, "dv": 128}
    assert alone(JaggedCase("many", PLAIN.program, lengths_q=(40,) * 6, **lengths))
    assert not alone(JaggedCase("skewed", PLAIN.program, lengths_q=(70, *(2,) * 9), **lengths))


@pytest.mark.parametrize(("count", "sorts"), [(1152, True), (3000, False)])
def test_up_to_so_many_sequences_are_sorted(count: int, sorts: bool, monkeypatch) -> None:
    requests: list[bool] = []

    def recorded(work: torch.Tensor, few: bool) -> torch.Tensor:
        requests.append(few)
        return turns(work, few)

    monkeypatch.setattr(five_matmul, "turns", recorded)
    lengths = {"same": True, "h": 1, "d": 128, "dv": 128, "processors": 9}
    assert alone(JaggedCase("many", PLAIN.program, lengths_q=(2,) * count, **lengths))
    assert set(requests) == {sorts}


@pytest.mark.parametrize("few", [True, False])
def test_turns(few: bool) -> None:
    work = torch.tensor([5, 0, 7, 5, 9, 0, 5])
    expected = [4, 2, 0, 3, 6, 1, 5] if few else list(range(7))
    assert turns(work, few).tolist() == expected
    assert turns(work, few).dtype == torch.int32


@pytest.mark.parametrize("case", [PLAIN, JAGGED], ids=lambda case: case.name)
def test_cubins(case: Case, tmp_path) -> None:
    """No register of the inner loop spills; what little does are numbers of the pair."""
    pytest.importorskip("triton")
    from .test_cubins import check_template

    small = {"b": 2} if case is PLAIN else {"lengths_q": (512, 256), "max_q": 512}
    case = dataclasses.replace(case, processors=1, **small)
    kernels = case.sources(torch.bfloat16).items()
    ((name, text),) = ((name, text) for name, text in kernels if "SUMS" in text)
    check_template(name, text, "five_matmul", Shape(128, 128, 2), 144, tmp_path)
