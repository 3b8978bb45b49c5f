"""What a template inlines can be run without a kernel: torch 2.14 and later do so first, to learn
what it reads."""

from unittest import mock

import pytest
from torch._inductor.virtualized import NullKernelHandler, V

from gdpa_inductor.lowerings.triton import launch

from . import render
from .cases import Case
from .jagged_cases import JaggedCase

WINDOW = "where(le(abs(sub(q_idx,kv_idx)),i0),silu(s),0.0)"
OPERANDS = (
    "a0:f[h,q_idx,kv_idx]; a1:i[b]; a2:b[kv_idx]; "
    "where(and(a2,lt(kv_idx,a1)),mul(silu(add(s,a0)),float(i0)),0.0)"
)
CASES = [
    Case("plain", "silu(s)", m=19, n=53),
    Case("window", WINDOW, m=19, n=19, scalars=(5,)),
    Case("operands", OPERANDS, m=19, n=53, scalars=(19,), needs="qkv0"),
    JaggedCase("jagged", "silu(s)", lengths_q=(30, 13), same=True),
    JaggedCase("jagged_window", WINDOW, lengths_q=(30, 13), lengths_k=(13, 30), scalars=(5,)),
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_subgraphs_run_without_a_kernel(case: Case, dynamic: bool):
    plan_kernel = launch.plan_kernel
    names: list[set[str]] = []

    def recorded(*arguments, **fields):
        assert isinstance(V.kernel, NullKernelHandler)
        plan, subgraphs = plan_kernel(*arguments, **fields)
        assert len(subgraphs) == len(plan.subgraphs)
        for subgraph in subgraphs:
            reads = {x.name for x in subgraph.get_read_writes().reads if x.name is not None}
            assert reads <= plan.fixed.keys(), "a template passes these by name"
            names.append(reads)
        return plan, subgraphs

    with mock.patch.object(launch, "plan_kernel", recorded):
        source = render.wrapper(case.function(), case.tensors(), dynamic=dynamic)
    assert "triton_heuristics.template" in source
    assert any("s" in reads for reads in names), "nothing was recorded"
