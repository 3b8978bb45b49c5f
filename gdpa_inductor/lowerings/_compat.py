"""The private parts of Inductor that lowerings use, and the versions they were checked on.

Checked on torch 2.11.0 and 2.13.0 unless a line says otherwise. Everything of torch._inductor is imported inside the
functions: `choose` must not load the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def register_lowering(op: Any, function: Callable[..., Any]) -> None:
    """Make `function` the lowering of `op`: it gets Inductor IR and plain literals, and returns IR."""
    from torch._inductor.lowering import lowerings, register_lowering

    if op not in lowerings:
        register_lowering(op, type_promotion_kind=None)(function)


def lowered_node_values() -> list[Any]:
    """The arguments of the node under lowering, as fake tensors, SymInts and literals."""
    from torch._inductor.virtualized import V

    return list(torch.fx.map_arg(V.graph.current_node.args, lambda node: node.meta["val"]))


def inline_formula(formula: Callable[..., Any], operands: list[Any], fakes: list[Any]) -> Any:
    """Lower `formula(*operands)` op by op in place of the node under lowering; results are contiguous.

    operands: IR nodes and symbolic sizes; fakes: the same as fake tensors and SymInts.
    """
    from torch._inductor import ir
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.lowering import process_subgraph_nodes
    from torch._inductor.virtualized import V
    from torch.fx.experimental.proxy_tensor import make_fx

    with V.fake_mode, torch.no_grad():
        traced = make_fx(formula, select_decomp_table(), tracing_mode="real", _allow_non_fake_inputs=True)(*fakes)
    result = process_subgraph_nodes(traced, operands)
    if isinstance(result, (list, tuple)):
        return [ir.ExternKernel.require_contiguous(part) for part in result]
    return ir.ExternKernel.require_contiguous(result)
