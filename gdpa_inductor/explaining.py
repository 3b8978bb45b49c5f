"""explain(model)(*args) -> Report: what `backend="gdpa"` would do with a model, and what prevents
it.

Dynamo captures the model anew. Each graph is analysed on a copy, and then runs as it was captured,
without Inductor. Afterwards the model is unchanged: parameters, buffers, gradients and attributes.
So are the inputs, the random number generators and Dynamo's counters. Models that were compiled
before stay compiled.
"""

from __future__ import annotations

import contextlib
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from typing_extensions import Unpack

from ._compat import dynamo, fx, subclasses
from .backend import analyse
from .graphs import copy_graph
from .operands import dtype_name
from .options import PREFIX, Options, OptionValues, split
from .patterns import Result
from .patterns.host import facts, places
from .rejection import Code
from .report import Report
from .report.sections import GraphBreak, Line, Listing, SkippedFrame


def explain(
    target: Callable[..., Any],
    *inputs: Any,
    dynamic: bool | None = None,
    **options: Unpack[OptionValues],
) -> Callable[..., Report]:
    """How `target`, a function or a module (compiled already or not), would be compiled by
    `backend="gdpa"`.

    Args:
        dynamic: as torch.compile's. The default is that of a compiled `target`.
        options: those of the backend without their prefix, such as `profit=False`, over those of a
            compiled `target`. `strict` and `expect` raise nothing.

    Returns:
        A function of the model's own arguments that runs it once and returns the Report.

    Raises:
        ValueError: a wrong option.
        TypeError: `explain(model, x)`, or a target that cannot be called.
    """
    if inputs or not callable(target):
        raise TypeError(
            "explain wants a model or a function and returns a function of its inputs: write "
            "explain(model)(x), with options in the first brackets, explain(model, profit=False)(x)"
        )
    its_dynamic, its_options = dynamo.settings(target)
    ours, _ = split(its_options)
    chosen = Options.make(ours | {PREFIX + name: value for name, value in options.items()})
    dynamic = its_dynamic if dynamic is None else dynamic
    target = dynamo.uncompiled(target)

    def report(*args: Any, **kwargs: Any) -> Report:
        analyst = _Analyst(chosen)
        with (
            untouched(target, args, kwargs),
            dynamo.compiled_calls_set_aside(target),
            dynamo.dynamo_observed(analyst, _code_objects(target)) as seen,
        ):
            torch.compile(target, backend=analyst, dynamic=dynamic)(*args, **kwargs)
        return Report(
            matches=analyst.result.matches,
            rejections=analyst.result.rejections,
            graph_breaks=_breaks(seen),
            skipped_frames=tuple(_skipped(failure) for failure in seen.failures),
            graphs=tuple(analyst.listings),
        )

    return report


class _Analyst:
    """A Dynamo backend that analyses copies and runs the graphs as they are."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.result = Result()
        self.listings: list[Listing] = []

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        result = analyse(gm, copy_graph(gm), self.options).result
        first = (len(self.result.matches), len(self.result.rejections))
        self.listings.append(listing(gm, f"Graph {len(self.listings)}", result, first))
        self.result += result
        return gm.forward


def listing(
    gm: GraphModule, title: str, result: Result, first: tuple[int, int] = (0, 0)
) -> Listing:
    """The nodes of a graph and of its bodies. first: The numbers of the result's first entries."""
    match_of = {name: i for i, m in enumerate(result.matches, first[0]) for name in m.replaced}
    rejection_of = {r.node: i for i, r in enumerate(result.rejections, first[1])}
    lines = [
        Line(
            name=node.name,
            code=_code(node),
            value=_value(facts.value(node)),
            location=places.location(node),
            inputs=tuple(n.name for n in node.all_input_nodes),
            match=match_of.get(node.name),
            rejection=rejection_of.get(node.name),
        )
        for module in gm.modules()
        if isinstance(module, GraphModule)
        for node in module.graph.nodes
    ]
    return Listing(title, tuple(lines))


def _code(node: Node) -> str:
    if node.op == "placeholder":
        return f"{node.name}  (input)"
    arguments = [_argument(a) for a in node.args] + [
        f"{k}={_argument(v)}" for k, v in node.kwargs.items()
    ]
    if node.op == "output":
        return f"return {', '.join(arguments)}"
    called = facts.name(node) or str(node.target)
    return f"{node.name} = {called}({', '.join(arguments)})"


def _argument(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _value(value: Any) -> str:
    if isinstance(value, Tensor):
        sizes = ", ".join(map(str, value.shape))
        return f"{dtype_name(value.dtype)} [{sizes}]"
    if isinstance(value, (tuple, list)):
        return ", ".join(_value(x) for x in value)
    return "" if value is None else str(value)


def _code_objects(target: Any) -> list[Any]:
    """The code of the functions that Dynamo may be given, to try those again that it skipped."""
    modules = list(target.modules()) if isinstance(target, nn.Module) else []
    functions = [getattr(type(m), "forward", None) for m in modules] or [target]
    codes = (getattr(getattr(f, "__func__", f), "__code__", None) for f in functions)
    return [code for code in dict.fromkeys(codes) if code is not None]


# What Dynamo says, and what to change

_ADVICE = (  # what a reason says; what to do about it. The first row that applies.
    (
        r"\.item\(\)|\.tolist\(\)|capture_scalar_outputs",
        "keep the number in a tensor: masks and torch.where instead of slices; for sequences pad, "
        "attend and unpad, or call gdpa_inductor.attention with cu_seqlens. For a number that is "
        "no size torch._dynamo.config.capture_scalar_outputs = True will do",
    ),
    (
        r"[Dd]ynamic.shape.operator|capture_dynamic_output_shape_ops",
        "tell the operator the size of its output (dense_to_jagged: its total length), or set "
        "torch._dynamo.config.capture_dynamic_output_shape_ops = True",
    ),
    (
        r"generic_jump|[Dd]ata-dependent branching",
        "choose with torch.where or torch.cond instead of `if`",
    ),
    (
        r"[Dd]ata-dependent|data dependent",
        "let no Python number or shape depend on the values of a tensor",
    ),
    (
        r"`?print`?|logging|[Ww]arnings?\.warn",
        "take the call out, or add it to torch._dynamo.config.reorderable_logging_functions",
    ),
    (
        r"torch\._dynamo\.(disable|graph_break)|disallow",
        "the code asks for it: take the marker out",
    ),
    (r"graph break in (a )?(for/while )?loop", "resolve the graph break inside of the loop"),
)


_HARMLESS = "nothing, it is harmless: torch's own code, outside of the model"


def _advice(reason: str, location: str) -> str:
    if "DDPOptimizer" in reason:
        return f"nothing, but where a region is not fused: {Code.DDP_CUT.name}"
    if dynamo.is_torchs(location):
        return _HARMLESS
    for pattern, advice in _ADVICE:
        if re.search(pattern, reason):
            return advice
    hint = re.search(r"Hint: (.+)", reason)
    return hint[1].strip() if hint else ""


def _sentence(reason: str) -> str:
    """Dynamo's title and explanation."""
    title = reason.strip().split("\n", 1)[0].strip()
    explanation = re.search(r"Explanation: (.+)", reason)
    if title.startswith("generic_jump"):
        return "a Python `if` or `while` depends on the values of a tensor"
    return f"{title}: {explanation[1].strip()}" if explanation else title


def _breaks(seen: dynamo.Observed) -> tuple[GraphBreak, ...]:
    """One for each place and reason; what made Dynamo skip a frame is told with the frame."""
    skipped = {failure.location for failure in seen.failures}
    return tuple(
        GraphBreak(location, _sentence(reason), _advice(reason, location))
        # A break in an inlined function ends the graphs of its callers too.
        for location, reason in dict.fromkeys(seen.breaks)
        if location not in skipped
    )


def _skipped(failure: dynamo.FrameFailure) -> SkippedFrame:
    advice = _advice(failure.reason, failure.location)
    return SkippedFrame(failure.name, failure.location, _sentence(failure.reason), advice)


# Nothing changes but by the report


@contextlib.contextmanager
def untouched(target: Any, *arguments: Any) -> Iterator[None]:
    """A context that restores all that a run of `target`, a function or a module, may change.

    That is: tensors and their gradients, attributes of modules, training mode, and the states of
    random number generators. Tensors are parameters, buffers, arguments, and those in a closure.
    """
    modules = _modules(target, arguments)
    tensors = _tensors(target, arguments, modules)
    attributes = [(vars(m), _copied(vars(m))) for m in modules]
    # Tensors of inference mode cannot be written outside of it, meta ones have no elements.
    owned = [t for t in tensors if not (t.is_inference() or t.is_meta)]
    contents = [
        (part, part.clone()) for t in owned for part in subclasses.strided_parts(t.detach())
    ]
    gradients = [
        (t, t.grad, t.grad.clone()) if t.grad is not None else (t, None, None)
        for t in tensors
        if t.is_leaf
    ]
    try:
        with _generators(tensors):
            yield
    finally:
        # In place: a `__dict__` is handed out by reference, and cannot be exchanged.
        for now, before in attributes:
            now.clear()
            now.update(before)
        for tensor, saved in contents:
            # Not by the version counter: batch norm writes its statistics without counting.
            if not torch.equal(tensor, saved):
                tensor.data.copy_(saved)
        # The tensor that holds the gradient is put back too: an optimizer may hold it.
        for tensor, grad, saved_grad in gradients:
            tensor.grad = grad
            if grad is not None and saved_grad is not None:
                grad.data.copy_(saved_grad)


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    """A module's attributes, its dicts of parameters, buffers and modules copied."""
    return {
        name: type(x)(x) if name.startswith("_") and type(x) is dict else x
        for name, x in attributes.items()
    }


def _reachable(target: Any, arguments: Any) -> list[Any]:
    """The target, what is in its closure, its bound self, and every argument."""
    function = getattr(target, "__func__", target)
    cells = getattr(function, "__closure__", None) or ()
    contents = [cell.cell_contents for cell in cells if cell != type(cell)()]
    return [target, getattr(target, "__self__", None), *contents, *fx.tree_leaves(arguments)]


def _modules(target: Any, arguments: Any) -> list[nn.Module]:
    outermost = [x for x in _reachable(target, arguments) if isinstance(x, nn.Module)]
    return list(dict.fromkeys(inner for outer in outermost for inner in outer.modules()))


def _tensors(target: Any, arguments: Any, modules: list[nn.Module]) -> list[Tensor]:
    tensors = [x for x in fx.tree_leaves(_reachable(target, arguments)) if isinstance(x, Tensor)]
    for module in modules:
        tensors += [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return list({id(t): t for t in tensors}.values())


@contextlib.contextmanager
def _generators(tensors: list[Tensor]) -> Iterator[None]:
    """Python's, NumPy's and torch's generators, on the CPU and on the devices of the tensors."""
    devices = {t.device.index for t in tensors if t.device.type == "cuda"}
    python, numpy = random.getstate(), sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
