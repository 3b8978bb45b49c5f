"""rewrite(program) -> (program, Report): rewrite exported programs and other captured graphs.

In: a torch.export.ExportedProgram, or a GraphModule whose nodes have fake values. Out: a program of
the same type with the same parameters, and a report. The argument is never changed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from torch.export import ExportedProgram, ModuleCallEntry
from torch.fx import Graph, GraphModule
from typing_extensions import Unpack

from .backend import apply
from .explaining import listing
from .graphs import copy_graph
from .options import Options, OptionValues
from .patterns import Result
from .report import Report

Program = TypeVar("Program", ExportedProgram, GraphModule)


def rewrite(program: Program, **options: Unpack[OptionValues]) -> tuple[Program, Report]:
    """Replace every GDPA region of a captured program by one call of the fused op.

    Args:
        program: exported (`torch.export.export`) or a graph with meta["val"] or
            meta["example_value"].
        options: those of the backend without their prefix, such as `strict=True`.

    Raises:
        ValueError: a wrong option.
        GDPAError: under `strict` or `expect`.
        TypeError: a program of another type.
    """
    chosen = Options.make(options)
    if isinstance(program, ExportedProgram):
        return _exported(program, chosen)  # type: ignore[return-value]
    if isinstance(program, GraphModule):
        rewritten = copy_graph(program)
        return rewritten, _report(program, apply(rewritten, chosen))
    raise TypeError(f"an ExportedProgram or a GraphModule is wanted, not {type(program).__name__}")


def _report(gm: GraphModule, result: Result) -> Report:
    return Report(result.matches, result.rejections, graphs=(listing(gm, "Graph", result),))


def _exported(program: ExportedProgram, options: Options) -> tuple[ExportedProgram, Report]:
    gm = copy_graph(program.graph_module)
    count = len(_outputs(gm.graph))
    _hold_boundaries(gm.graph, program.module_call_graph)
    old_names = _output_names(gm.graph)
    result = apply(gm, options)
    # A region that is an output has another node, so another name, now.
    renamed = dict(zip(old_names, _output_names(gm.graph), strict=True))
    gm.graph.output_node().update_arg(0, _outputs(gm.graph)[:count])
    gm.recompile()
    signature = copy.deepcopy(program.graph_signature)
    for old, new in renamed.items():
        if old != new:
            signature.replace_all_uses(old, new)
    exported = ExportedProgram(
        root=gm,
        graph=gm.graph,
        graph_signature=signature,
        state_dict=program.state_dict,
        range_constraints=dict(program.range_constraints),
        module_call_graph=_renamed(program.module_call_graph, renamed),
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )
    return exported, _report(program.graph_module, result)


def _hold_boundaries(graph: Graph, calls: Iterable[ModuleCallEntry]) -> None:
    """Append the operands and results of modules to the outputs of the graph."""
    # A program keeps them under `preserve_module_call_signature`. So a region holds none of them
    # between its products, and one at its end is followed to its new name.
    wanted = {argument.name for entry in calls for argument in _boundary(entry)}
    boundary = [node for node in graph.nodes if node.op == "call_function" and node.name in wanted]
    graph.output_node().update_arg(0, (*_outputs(graph), *boundary))


def _renamed(calls: Iterable[ModuleCallEntry], names: dict[str, str]) -> list[ModuleCallEntry]:
    """The calls with new names of nodes."""

    def named(arguments: Iterable[Any]) -> list[Any]:
        return [replace(x, name=names.get(x.name, x.name)) for x in arguments]

    def entry(call: ModuleCallEntry) -> ModuleCallEntry:
        signature = call.signature
        if signature is None:
            return call
        inputs, outputs = named(signature.inputs), named(signature.outputs)
        # The two share tree specs, as copies of these warn.
        return replace(call, signature=replace(signature, inputs=inputs, outputs=outputs))

    return list(map(entry, calls))


def _boundary(entry: ModuleCallEntry) -> list[Any]:
    signature = entry.signature
    return [] if signature is None else [*signature.inputs, *signature.outputs]


def _outputs(graph: Graph) -> tuple[Any, ...]:
    return tuple(graph.output_node().args[0])  # type: ignore[arg-type]


def _output_names(graph: Graph) -> list[str]:
    return [getattr(output, "name", "") for output in _outputs(graph)]
