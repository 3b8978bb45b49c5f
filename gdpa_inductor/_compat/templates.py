"""Inductor's Triton templates and its autotuning: one operand list, several ways to compute it.

`triton_template` makes a template, `rival` a kernel that is none, and `best_of` the output of the
fastest of them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from .inductor import thorough
from .shapes import size_expr

log = logging.getLogger("gdpa_inductor")

# How Triton compiles every template. Its default for this option changes in 3.10, and torch 2.15
# leaves it to Triton under `emulate_precision_casts`. docs/numerics.md says why ours is True.
_COMPILED = {"enable_fp_fusion": True}


def triton_template(
    name: str, grid: Callable[..., Any], source: str, names: Mapping[str, Any]
) -> Any:
    """A template of a jinja source. names: what the source may read besides Inductor's own."""
    from torch._inductor.select_algorithm import SymbolicGridFn, TritonTemplate

    template = TritonTemplate(name=name, grid=SymbolicGridFn(grid), source=source, **_freeze())
    template.template.globals.update(names)
    template.kernel_type = _kernel_type()
    return template


@functools.cache
def _kernel_type() -> Any:
    """Kernels that may store their output at several places."""
    # What Inductor fuses into a store names parts of its index. These are written where the first
    # store is, and other branches lack them.
    from torch._inductor.select_algorithm import TritonTemplateKernel

    class Kernel(TritonTemplateKernel):
        @contextlib.contextmanager
        def set_subgraph_body(self, body_name: str) -> Iterator[None]:
            with super().set_subgraph_body(body_name):
                for tree in self.range_trees:
                    tree.cache_clear()
                yield

    return Kernel


def _freeze() -> dict[str, bool]:
    # torch 2.12 may defer the layout of an operand; ours are settled before a template sees them.
    from torch._inductor.select_algorithm import TritonTemplate

    known = inspect.signature(TritonTemplate.__init__).parameters
    return {"always_freeze_layout": True} if "always_freeze_layout" in known else {}


def rival(
    name: str, kernel: Callable[..., None], create: Callable[[], Any], body: dict[str, Any]
) -> Any:
    """A kernel that is no template, as a choice beside one, with the template's operands.

    create: Its node in the graph, should it win. name: The same for kernels that cost the same, in
    every process.
    """
    from torch._inductor.select_algorithm import ExternKernelChoice, extern_kernels

    if hasattr(extern_kernels, name):
        delattr(extern_kernels, name)
    choice = ExternKernelChoice(
        kernel, name=name, kernel_creator=lambda *_, **__: create().data.data
    )
    return choice.bind(body["input_nodes"], body["layout"])


def best_of(
    template: Any,
    name: str,
    choices: Sequence[dict[str, Any]],
    body: dict[str, Any],
    examples: dict[int, Callable[[], torch.Tensor]],
    sizes: Sequence[Any],
    rivals: Sequence[Any] = (),
) -> Any:
    """The output of the template under the fastest of `choices`; a single one is not timed.

    examples: By the number of the operand what it holds while choices are timed; else floats are
    random and integers are zero. sizes: Those that the subgraphs name. rivals: As of `rival`.
    """
    import sympy
    from torch._inductor.select_algorithm import autotune_select_algorithm

    callers: list[Any] = []
    errors = [
        template.maybe_append_choice(callers, triton_meta=dict(_COMPILED), **choice, **body)
        for choice in choices
    ]
    if not callers:
        raise RuntimeError(f"no configuration of {name} can be rendered: {errors}")
    callers += rivals
    nodes, layout = body["input_nodes"], body["layout"]
    inputs = {number: lambda _, make=make: make() for number, make in examples.items()}
    with _quiet():
        result = autotune_select_algorithm(
            name, callers, nodes, layout, return_multi_template=False, input_gen_fns=inputs or None
        )
    output = result[0] if isinstance(result, tuple) else result  # 2.11 returns the node alone
    node = output.data.data
    # Where Inductor's own template, flex_attention, has them. A size that comes from a tensor has
    # to be computed before.
    if hasattr(node, "subgraph_inps"):
        named = [x if isinstance(x, sympy.Expr) else size_expr(x) for x in sizes]
        node.subgraph_inps = [x for x in named if x.free_symbols]
    return output


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Inductor prints a line for each comparison, even where nobody asked for max-autotune."""
    report = io.StringIO()
    with contextlib.nullcontext() if thorough() else contextlib.redirect_stderr(report):
        yield
    log.debug("%s", report.getvalue())
