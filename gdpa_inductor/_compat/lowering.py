"""Inductor's lowering: from FX nodes to its IR, and the ops that its templates inline.

Operands and results are nodes of the IR; sizes are sympy expressions. Everything of torch._inductor
is imported inside the functions: choosing a kernel must not load the compiler.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .shapes import contiguous_strides, size_expr, statically_known_true

_REGISTERED: set[Any] = set()


def register_lowering(op: Any, function: Callable[..., Any]) -> None:
    """Make `function` the lowering of `op`: from Inductor IR and literals to IR."""
    # Also where Inductor has met the op before, and made a call of its eager form its lowering.
    from torch._inductor.lowering import register_lowering

    if op not in _REGISTERED:
        register_lowering(op, type_promotion_kind=None)(function)
        _REGISTERED.add(op)


def lowered_node_values() -> list[Any]:
    """The arguments of the node under lowering, as fake tensors, SymInts and literals."""
    from torch._inductor.virtualized import V

    return list(torch.fx.map_arg(V.graph.current_node.args, lambda node: node.meta["val"]))


def spent(arguments: Sequence[Any], views: bool = False) -> list[bool]:
    """For each argument (an FX node): whether nothing needs its memory after this node.

    views: Also accept views of saved tensors.
    """
    # It is saved for a backward that runs once, has no other reader, and shares its memory with
    # nothing. torch itself ensures only that the caller and results do not share it.
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    reads: list[torch.fx.Node] = []
    torch.fx.map_arg(V.graph.current_node.args, reads.append)

    def is_spent(node: Any) -> bool:
        if not isinstance(node, torch.fx.Node) or reads.count(node) != 1:
            return False
        reader = V.graph.current_node
        while views and list(node.users) == [reader] and getattr(node.target, "is_view", False):
            node, reader = node.args[0], node
        graph_input = V.graph.graph_inputs_original.get(str(node.target))
        placed = node.op == "placeholder" and isinstance(graph_input, ir.DonatedBuffer)
        return placed and list(node.users) == [reader] and _has_memory_alone(node)

    return list(map(is_spent, arguments))


def _has_memory_alone(node: torch.fx.Node) -> bool:
    """Whether an input of the graph uses all of its memory, and no other input uses it."""
    value = node.meta["val"]
    storage = value.untyped_storage()
    inputs = node.graph.find_nodes(op="placeholder")
    values = [other.meta.get("val") for other in inputs if other is not node]
    whole = storage.nbytes() == value.numel() * value.itemsize
    return statically_known_true(whole) and not any(
        StorageWeakRef(x.untyped_storage()) == StorageWeakRef(storage)
        for x in values
        if isinstance(x, torch.Tensor)
    )


def is_input(node: Any) -> bool:
    """True if the node is an input of the graph or a view of one. A copy is neither."""
    from torch._inductor.virtualized import V

    return node.get_name() in V.graph.graph_inputs


def node_arguments() -> tuple[Any, ...]:
    """The arguments of the node under lowering, as FX nodes and literals."""
    from torch._inductor.virtualized import V

    return tuple(V.graph.current_node.args)


def once_per_graph(key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """The result of `make` for the key, computed once for each graph that is lowered."""
    from torch._inductor.virtualized import V

    results = _PER_GRAPH.setdefault(V.graph, {})
    if key not in results:
        results[key] = make()
    return results[key]


_PER_GRAPH: weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], Any]] = weakref.WeakKeyDictionary()


def copied(source: Any, dtype: torch.dtype | None = None) -> Any:
    """A new buffer with the values of `source`, cast in one pass, with its strides at capture."""
    from torch._inductor.lowering import to_dtype
    from torch._inductor.virtualized import V

    buffer = to_dtype(source, dtype or source.get_dtype(), copy=True)
    buffer.realize()
    # While a layout is not settled, views of torch 2.11 may read by strides that it does not get.
    strides = V.graph.current_node.meta["val"].stride()
    buffer.freeze_layout_with_exact_strides([size_expr(step) for step in strides])
    return buffer


def lowered(op: Any, *args: Any) -> Any:
    """Lower a call of an ATen operator, as Inductor does."""
    from torch._inductor.lowering import lowerings

    return lowerings[op](*args)


def contiguous(node: Any) -> Any:
    """The operand as a contiguous buffer."""
    from torch._inductor import ir

    return ir.ExternKernel.require_contiguous(node)


def is_in_memory(node: Any) -> bool:
    """True if the operand is in memory: a buffer, or a view of one."""
    from torch._inductor import ir

    return bool(ir.is_storage_and_layout(node))


def unwidened(node: Any) -> Any:
    """The operand in 16 bits, if it is a buffer in 16 bits that is only cast to fp32. Else itself.

    The buffer has the operand's elements in the same order, and no others.
    """
    from torch._inductor import dependencies, ir
    from torch._inductor.virtualized import V

    equal = V.graph.sizevars.statically_known_equals
    whole = ir.Pointwise(
        device=node.get_device(),
        dtype=node.get_dtype(),
        inner_fn=node.make_loader(),
        ranges=node.get_size(),
    )
    reads = list(whole.get_reads())
    if whole.inner_fn_opcount().used_ops != {"load", "to_dtype"} or len(reads) != 1:
        return node
    buffer = V.graph.try_get_buffer(reads[0].name)
    read = reads[0].normalize() if isinstance(reads[0], dependencies.MemoryDep) else None
    # A row that is expanded is read in order too, but more than once.
    once = read is not None and equal(read.get_numel(), node.get_numel())
    if (
        not (once and read.is_contiguous())
        or buffer is None
        or buffer.get_dtype() not in (torch.float16, torch.bfloat16)
    ):
        return node
    layout = buffer.get_layout()
    if not (layout.is_contiguous() and equal(buffer.get_numel(), node.get_numel())):
        return node
    box = buffer if isinstance(buffer, ir.TensorBox) else ir.TensorBox.create(buffer)
    return lowered(torch.ops.aten.reshape.default, box, node.get_size())


def extern_call(op: Any, *args: Any, **options: Any) -> Any:
    """Call `op` from the generated code; tensors in and out are Inductor IR."""
    from torch._inductor.lowering import fallback_handler

    return fallback_handler(op, add_to_fallback_set=False)(*args, **options)


def direct_call(op: Any, callee: tuple[str, str, str], *args: Any, **options: Any) -> Any:
    """The same without torch's dispatcher, which takes longer than a launch.

    callee: (module, name, argument). Python code calls `name(argument)` once for each call site,
    and then its result in place of `op`. C++ code, and graphs that are no code, still call `op`.
    """
    import torch.utils._pytree as pytree
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    class DirectCall(ir.FallbackKernel):
        def codegen(self, wrapper: Any) -> None:
            if not V.graph.cpp_wrapper:
                module, name, argument = callee
                alias = f"{module}.{name}".replace(".", "_")  # others may have a `name` too
                self.python_kernel_name = f"gdpa_{self.get_name()}"
                wrapper.add_import_once(f"from {module} import {name} as {alias}")
                wrapper.add_import_once(f"{self.python_kernel_name} = {alias}({argument})")
            super().codegen(wrapper)

    def boxed(node: Any) -> Any:
        return ir.TensorBox.create(node) if isinstance(node, ir.IRNode) else node

    return pytree.tree_map(boxed, DirectCall.create(op, *args, **options))


def inline_formula(formula: Callable[..., Any], operands: list[Any], fakes: list[Any]) -> Any:
    """Lower `formula(*operands)` op by op; the results are contiguous.

    operands: IR nodes and symbolic sizes; fakes: the same as fake tensors and SymInts.
    """
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.lowering import process_subgraph_nodes
    from torch._inductor.virtualized import V
    from torch.fx.experimental.proxy_tensor import make_fx

    with V.fake_mode, torch.no_grad():
        traced = make_fx(
            formula, select_decomp_table(), tracing_mode="real", _allow_non_fake_inputs=True
        )(*fakes)
    result = process_subgraph_nodes(traced, operands)
    if isinstance(result, (list, tuple)):
        return [contiguous(part) for part in result]
    return contiguous(result)


def finish(
    formula: Callable[..., Any],
    buffer: Any,
    size: Sequence[Any],
    dtype: torch.dtype,
    like: torch.Tensor,
    extra: tuple[list[Any], list[Any]] = ([], []),
    strides: Sequence[Any] | None = None,
) -> Any:
    """Lower `formula(buffer, like, *extra)`, of a buffer of this size, dtype and strides.

    like: A fake tensor like the result. extra: More operands, as IR and as fakes.
    """
    nodes, fakes = extra
    stored = fake(size, dtype, like.device, strides)
    return inline_formula(
        lambda part, *rest: formula(part, like, *rest), [buffer, *nodes], [stored, *fakes]
    )


def fake(
    size: Sequence[Any],
    dtype: torch.dtype,
    device: torch.device,
    strides: Sequence[Any] | None = None,
) -> torch.Tensor:
    """A fake tensor of the lowering, contiguous without strides."""
    from torch._inductor.virtualized import V

    steps = contiguous_strides(size) if strides is None else strides
    with V.fake_mode:
        return torch.empty_strided(tuple(size), tuple(steps), dtype=dtype, device=device)


def inductor_op(name: str, *args: Any, **kwargs: Any) -> Any:
    """One of Inductor's ops through the current handler; the result has arithmetic operators."""
    from torch._inductor.virtualized import ops

    return getattr(ops, name)(*args, **kwargs)


def fixed_input(name: str, dtype: torch.dtype) -> Any:
    """An input that a template passes to `modification`."""
    # torch 2.11 assumes fp32, so the dtype is set. torch 2.14 also runs a subgraph only to record
    # what it reads. Its loads are then plain text.
    import sympy
    from torch._inductor.codegen.common import CSEVariable
    from torch._inductor.virtualized import OpsValue, ops

    loaded = ops.load(name, sympy.S.Zero)
    variable = loaded.value if isinstance(loaded, OpsValue) else loaded
    if isinstance(variable, CSEVariable):
        variable.dtype = dtype
    return loaded


def symbolic_scalar(value: Any, dtype: torch.dtype) -> Any:
    """A size of the graph in a `modification`. A symbolic size becomes an argument."""
    import sympy

    expression = sympy.sympify(value)
    if expression.is_number:
        return inductor_op("constant", int(expression), dtype)
    return plain_integer(expression, dtype)


def plain_integer(expression: Any, dtype: torch.dtype = torch.int32) -> Any:
    """The same as a plain integer, not a Triton block, so that it can bound a loop."""
    from torch._inductor.virtualized import NullKernelHandler, OpsValue, V

    if isinstance(V.kernel, NullKernelHandler):  # nothing is written, see `fixed_input`
        return inductor_op("index_expr", expression, dtype)
    text = V.kernel.kexpr(V.kernel.rename_indexing(expression))
    return OpsValue(V.kernel.cse.generate(V.kernel.compute, f"({text})", dtype=dtype, shape=()))


def computed_scalar(body: Callable[[Any], Any], device: torch.device, dtype: torch.dtype) -> Any:
    """`body` as a buffer without dims, which is the form that a template inlines."""
    from torch._inductor import ir

    data = ir.Pointwise(device=device, dtype=dtype, inner_fn=body, ranges=[])
    layout = ir.FlexibleLayout(device=device, dtype=dtype, size=[])
    return ir.ComputedBuffer(name=None, layout=layout, data=data)


def likely_size(expression: Any) -> int:
    """The hint of a size, or a guess. Adds no guard."""
    from torch._inductor.virtualized import V

    return int(V.graph.sizevars.optimization_hint(expression))


def random_integers(node: Any, high: int) -> torch.Tensor:
    """A contiguous operand like `node`, of integers in 0..high."""
    size = [likely_size(extent) for extent in node.get_size()]
    return torch.randint(0, high + 1, size, device=node.get_device()).to(node.get_dtype())


def realized(node: Any, device: torch.device) -> Any:
    """The operand as a buffer on `device`, or a strided view of one, with a fixed layout."""
    from torch._inductor import ir

    buffer = ir.ExternKernel.realize_input(on_device(node, device))
    if isinstance(buffer.get_layout(), ir.FlexibleLayout):
        buffer.freeze_layout()
    return buffer


def on_device(node: Any, device: torch.device) -> Any:
    """The operand on `device`."""
    from torch._inductor.lowering import to_device

    return node if node.get_device() == device else to_device(node, device)


def rounded_to_tf32(node: Any) -> Any:
    """fp32 rounded to the nearest TF32, still as fp32."""
    from torch._inductor import ir

    load = node.make_loader()

    def body(index: Any) -> Any:
        conversion = {"asm": "cvt.rna.tf32.f32 $0, $1;", "constraints": "=r,r"}
        return inductor_op("inline_asm_elementwise", load(index), **conversion)

    return ir.Pointwise.create(
        device=node.get_device(), dtype=torch.float32, inner_fn=body, ranges=node.get_size()
    )


def layout_of(
    size: Sequence[Any],
    dtype: torch.dtype,
    device: torch.device,
    strides: Sequence[Any] | None = None,
) -> Any:
    """The layout of a buffer, contiguous without strides."""
    from torch._inductor import ir

    steps = None if strides is None else [size_expr(step) for step in strides]
    return ir.FixedLayout(device, dtype, [size_expr(extent) for extent in size], steps)


def empty(
    size: Sequence[Any],
    dtype: torch.dtype,
    device: torch.device,
    strides: Sequence[Any] | None = None,
) -> Any:
    """A buffer for a kernel to write to, contiguous without strides."""
    from torch._inductor.lowering import empty_strided

    layout = layout_of(size, dtype, device, strides)
    return empty_strided(layout.size, layout.stride, dtype=dtype, device=device)


def zeros(size: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Any:
    """Zeros that Inductor may inline; for a buffer see `zeroed`."""
    from torch._inductor.lowering import full

    return full([size_expr(extent) for extent in size], 0, dtype=dtype, device=device)


def zeroed(size: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Any:
    """A contiguous buffer of zeros for a kernel to add to."""
    buffer = zeros(size, dtype, device)
    buffer.realize()
    buffer.freeze_layout_with_exact_strides(layout_of(size, dtype, device).stride)
    return buffer
