"""What the templates render, word for word, for one problem or two of each family of kernels: a
change of a template that is meant for one family must not touch the others.

`python -m tests.kernels.test_render` writes the files anew.
"""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch._inductor import config

from . import cases, render
from .cases import ADDED, SILU, Case
from .five_matmul_cases import PER_TOKEN, TAKEN
from .jagged_cases import JaggedCase
from .one_tile_cases import TAKEN as FEW

GOLDEN = Path(__file__).parent / "golden"
CAUSAL, GELU = "where(ge(q_idx,kv_idx),silu(s),0.0)", "gelu_tanh(mul(s,0.1))"
CAUSAL_BIAS = "a0:f[h,q_idx,kv_idx]; where(ge(q_idx,kv_idx),silu(add(s,a0)),0.0)"
TABLES = (
    "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; a2:f[t]; "
    "silu(add(add(s,lookup(a0,add(sub(q_idx,kv_idx),52))),lookup(a2,a1)))"
)
CASES = [
    Case("even", SILU, m=128, n=128, d=64, dv=64, choice=0),
    Case("tail_gqa", SILU, m=19, n=53, h=4, hk=2, hv=2),
    Case("operands", "a0:f[h,q_idx,kv_idx]; a1:f[kv_idx]; mul(silu(add(s,a0)),a1)", m=19, n=53,
         needs="qkv01"),
    Case("fast", GELU, m=128, n=128, d=64, dv=64, choice=0, half=True),
    Case("causal", CAUSAL, m=300, n=300, d=64, dv=64, choice=0),
    Case("added", SILU, m=128, n=128, d=64, dv=64, choice=0, options=ADDED),
    JaggedCase("jagged", SILU, lengths_q=(300, 130), same=True, d=64, dv=64, choice=0),
    JaggedCase("jagged_causal", CAUSAL, lengths_q=(300, 130), same=True, d=64, dv=64, choice=0),
    JaggedCase("jagged_operands", PER_TOKEN, lengths_q=(40, 7), lengths_k=(5, 90),
               needs="qkv01"),
    Case("tables", TABLES, m=19, n=53, needs="qkv02", integers=torch.uint8, places=71),
    Case("split", SILU, m=3, n=1100, needs=""),
    JaggedCase("split_keys", CAUSAL, m=3, lengths_k=(700, 90), needs=""),
    Case("five_matmul", SILU, m=128, n=256, choice=0, **TAKEN),
    Case("one_tile", SILU, m=48, n=300, b=40, choice=0, **FEW),
    JaggedCase("five_matmul_jagged", SILU, lengths_q=(300, 130, 200), same=True, choice=0, **TAKEN),
]  # fmt: skip
# What a case's own kernel has, and no other.
OWN = {
    "added": "tl.atomic_add(dq_base", "split": "SPLITS", "split_keys": "SPLITS",
    "tables": "DIAGONAL",
    "five_matmul": "arg_SUMS", "five_matmul_jagged": "arg_SUMS", "one_tile": "arg_DQ",
}  # fmt: skip


def rendered(case: Case) -> str:
    """The bodies of the template kernels of a case, forward and backward."""
    kernels = case.templates(torch.float16 if case.half else None).values()
    bodies = [render.bare(kernel) for kernel in kernels]
    return "\n".join(body[body.index("@triton.jit") :].rstrip() + "\n" for body in bodies)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernels_are_what_they_were(case: Case):
    assert rendered(case) == (GOLDEN / f"{case.name}.txt").read_text()


@pytest.mark.parametrize("name", OWN)
def test_a_case_is_rendered_by_its_own_kernel(name: str):
    """Which kernel serves a problem is a rule of sizes: a case may fall out of it unseen."""
    assert OWN[name] in (GOLDEN / f"{name}.txt").read_text()


def test_what_follows_the_product_is_computed_by_its_kernel():
    """Inductor's epilogue fusion: no kernel beside the template's, which stores once."""
    case = Case("epilogue", SILU, m=128, n=128, d=64, dv=64, choice=0, needs="")
    _, q, k, v = case.tensors()

    def gated(q, k, v, gate, skip):
        (out,) = case.function()(None, q, k, v)
        return torch.relu(out * gate) + skip

    source = render.wrapper(gated, [q, k, v, torch.empty_like(q), torch.empty_like(q)])
    (kernel,) = render.kernels(source).values()
    assert "triton_heuristics.template" in kernel and kernel.count("tl.store(") == 1


@pytest.mark.parametrize("exact", [False, True], ids=["default", "emulate_precision_casts"])
@pytest.mark.parametrize("name", ["operands", "one_tile", "jagged_causal", "split_keys"])
def test_templates_say_how_they_are_compiled(name: str, exact: bool):
    """Triton's default changes in 3.10. That of torch depends on a setting, from 2.15 on."""
    (case,) = (case for case in CASES if case.name == name)
    with config.patch(emulate_precision_casts=exact):
        texts = case.templates(choice=0).values()
    assert texts and all("'enable_fp_fusion': True" in text for text in texts)


def test_a_scalar_in_fp64_is_an_operand(tmp_path):
    """Hazard 16: it is read as a tensor, and computed with in fp32."""
    from .test_cubins import compiled

    case = Case("fp64", "a0:f[]; silu(mul(s,a0))", m=64, n=64, d=64, dv=64, needs="")
    _, q, k, v, _ = case.tensors()
    scalar = torch.empty((), dtype=torch.float64)
    source = render.wrapper(case.function(), [torch.empty_like(q), q, k, v, scalar])
    ((name, text),) = render.kernels(source).items()
    assert "*fp64" in text and ".to(tl.float32)" in text
    assert compiled(name, text, 90, tmp_path).asm["cubin"]


DENSE = {"d": 64, "dv": 64, "h": 1, "choice": 0, "needs": ""}
JAGGED = {"lengths_q": (300, 130), "max_q": 300, **DENSE}


MASKED = {"m": 19, "n": 53, "needs": ""}


@pytest.mark.parametrize(
    "case, steps",
    [
        # Masked tiles have a loop of their own only where they must.
        (Case("masked", CAUSAL, **MASKED), 1),
        (Case("masked_bias", CAUSAL_BIAS, **MASKED), 1),
        (Case("masked_ones", "where(ge(q_idx,kv_idx),1.0,0.0)", **MASKED), 2),
        # Half tiles stand at the ends of sequences: whole and half tiles of rows, times whole
        # columns, the last ones, at most half of them.
        (JaggedCase("both", SILU, same=True, **JAGGED), 6),
        (JaggedCase("causal", CAUSAL, same=True, **JAGGED), 2),
        (JaggedCase("rows", SILU, n=64, **JAGGED), 2),
        (JaggedCase("keys", SILU, m=64, lengths_k=(300, 130), **DENSE), 3),
        (JaggedCase("small", SILU, same=True, **{**JAGGED, "max_q": 40}), 3),
        (JaggedCase("long", SILU, same=True, **{**JAGGED, "lengths_q": (300,) * 300}), 2),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_forward_has_so_many_loops(case: Case, steps: int):
    assert rendered(case).count("s = tl.dot(q, k") == steps


@pytest.mark.parametrize(
    "lengths, longest, table",
    [
        ((300,) * 8, 300, True),  # few sequences are sorted
        ((300,) * 300, 300, False),
        ((250, 300) * 150, 300, False),  # 900 work tiles, where a table would have 944
        ((10,) * 300, 300, True),
    ],
)
def test_a_table_says_whose_a_tile_is_where_it_is_short(
    lengths: tuple[int, ...], longest: int, table: bool
):
    sizes = {"lengths_q": lengths, "max_q": longest}
    case = JaggedCase("placed", SILU, same=True, **{**JAGGED, **sizes})
    assert ("arg_ORDER" in rendered(case)) == table


def test_a_number_of_a_tensor_is_read_before_the_kernel():
    def attention(query, key, value, number):
        program = "silu(add(s,float(i0)))"
        scalars, rest = [number.item()], ("", None, None, 0, 0)
        return torch.ops.gdpa.attention(query, key, value, [], scalars, program, *rest)

    tensors = [torch.empty(2, 2, 64, 64, dtype=torch.bfloat16) for _ in range(3)]
    source = render.wrapper(attention, [*tensors, torch.tensor(3)])
    assert source.index("u0 = ") < source.index("triton_tem_fused_0.run(")


@pytest.mark.parametrize(("rows", "neighbours"), [(2060, True), (2040, False)])
def test_batches_are_neighbours_where_a_bias_does_not_stay_in_the_cache(
    rows: int, neighbours: bool
):
    """Two heads of fp32: 32 MiB are 2048 rows and columns."""
    program = "a0:f[h,q_idx,kv_idx]; silu(add(s,a0))"
    case = Case("shared", program, m=rows, n=rows, b=1)
    texts = rendered(case).split("@triton.jit")[1:]
    assert len(texts) == 3 and all(("batches = " in text) is neighbours for text in texts)


def added(options: str) -> str:
    (case,) = (case for case in cases.CASES if case.name == "added")
    return dataclasses.replace(case, options=options).source(case.tensors())


@pytest.mark.parametrize(("options", "adds"), [(ADDED, True), ("strict=True", False)])
def test_atomics_are_asked_for(options: str, adds: bool) -> None:
    """For dQ: only where the options admit it and torch does not forbid it."""
    assert ("tl.atomic_add" in added(options)) is adds


def test_torch_forbids_atomics() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert "tl.atomic_add" not in added(ADDED)
    finally:
        torch.use_deterministic_algorithms(False)


if __name__ == "__main__":
    for case in CASES:
        (GOLDEN / f"{case.name}.txt").write_text(rendered(case))
