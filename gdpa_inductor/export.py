"""rewrite(program) -> (program, Report): rewrite exported programs and other captured graphs.

In: a torch.export.ExportedProgram, or a GraphModule whose nodes have fake values. Out: a program of
the same type with the same parameters, and a report. The argument is never changed.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from .backend import apply
from .explaining import listing
from .graphs import copy_graph
from .options import Options
from .patterns import Result
from .report import Report

Program = TypeVar("Program", ExportedProgram, GraphModule)


def rewrite(program: Program, **options: Any) -> tuple[Program, Report]:
    """Replace every GDPA region of a captured program by one call of the fused op.

    Args:
        program: exported (`torch.export.export`) or a graph with meta["val"] or
            meta["example_value"].
        options: those of the backend without their prefix, such as `strict=True`.

    Raises:
        GDPAError: under `strict` or `expect`. TypeError: a program of another type.
    """
    chosen = Options.make(options)
    if isinstance(program, ExportedProgram):
        return _exported(program, chosen)  # type: ignore[return-value]
    if isinstance(program, GraphModule):
        made, result = _rewritten(program, chosen)
        return made, _report(program, result)
    raise TypeError(f"an ExportedProgram or a GraphModule is wanted, not {type(program).__name__}")


def _rewritten(gm: GraphModule, options: Options) -> tuple[GraphModule, Result]:
    made = copy_graph(gm)
    return made, apply(made, options)


def _report(gm: GraphModule, result: Result) -> Report:
    return Report(result.matches, result.rejections, graphs=(listing(gm, "Graph", result),))


def _exported(program: ExportedProgram, options: Options) -> tuple[ExportedProgram, Report]:
    before = _output_names(program.graph)
    gm, result = _rewritten(program.graph_module, options)
    signature = copy.deepcopy(program.graph_signature)
    # A region that is an output of the program has another node, so another name, now.
    for old, new in zip(before, _output_names(gm.graph), strict=True):
        if old != new:
            signature.replace_all_uses(old, new)
    made = ExportedProgram(
        root=gm,
        graph=gm.graph,
        graph_signature=signature,
        state_dict=program.state_dict,
        range_constraints=dict(program.range_constraints),
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )
    return made, _report(program.graph_module, result)


def _output_names(graph: torch.fx.Graph) -> list[str]:
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    return [getattr(node, "name", "") for node in output.args[0]]
