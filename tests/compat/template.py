"""A small Triton template, rendered for a faked CUDA device and run in Triton's interpreter."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import sympy
import torch
from torch._inductor import config
from torch._inductor.codecache import PyCodeCache
from torch._inductor.select_algorithm import AlgorithmSelectorCache, ExternKernelCaller

from gdpa_inductor._compat import lowering, templates
from tests.kernels import render

from .lowered import lowering_by, probe

CUDA = torch.device("cuda", 0)
F32, I32, I64 = torch.float32, torch.int32, torch.int64

# out[i, j] = term(x[i, j], y[i, j], i), added up `limit` times. COLUMNS is a power of two.
SOURCE = """
{{ def_kernel("X", "Y") }}
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, COLUMNS)[None, :]
    n = {{ size("X", 0) }}
    mask = (row < n) & (col < COLUMNS)
    x = tl.load(X + row * {{ stride("X", 0) }} + col * {{ stride("X", 1) }}, mask=mask, other=0.0)
    y = tl.load(Y + row * {{ stride("Y", 0) }} + col * {{ stride("Y", 1) }}, mask=mask, other=0)
    even = row % 2 == 0
    acc = x - x
    {{ modification(subgraph_number=1, output_name="limit") | indent(4) }}
    for _ in range(0, limit):
        {{ modification(subgraph_number=0, output_name="term", s="x", a0="y", q_idx="row",
                        keep="even") | indent(8) }}
        acc += term
    {{ say }}
    if tl.program_id(0) == 0:
        {{ store_output(("row", "col"), "acc", "mask", indent_width=8, val_shape=SHAPE) }}
    else:
        rest = acc
        {{ store_output(("row", "col"), "rest", "mask", indent_width=8, val_shape=SHAPE) }}
"""


def grid(n: Any, meta: dict[str, Any], *, cdiv: Callable[..., Any]) -> tuple[Any, int, int]:
    return cdiv(n, meta["ROWS"]), 1, 1


def sample() -> Any:
    """A new one: Inductor wants a name for each."""
    name = f"gdpa_compat_{next(_numbers)}"
    return templates.triton_template(
        name, grid, SOURCE, {"say": "# said", "SHAPE": ("ROWS", "COLUMNS")}
    )


_numbers = itertools.count()


Term = Callable[[int], Any]  # of a size, in Inductor's ops


def body_of(x: Any, y: Any, size: Any, term: Term) -> dict[str, Any]:
    """What is common to all choices."""
    nodes = [lowering.realized(node, CUDA) for node in (x, y)]
    fake = lowering.lowered_node_values()[0]
    expression = sympy.sympify(size)
    loop = lambda _: lowering.plain_integer(expression)
    return {
        "subgraphs": [
            lowering.computed_scalar(lambda _: term(size), CUDA, F32),
            lowering.computed_scalar(loop, CUDA, I32),
        ],
        "input_nodes": nodes,
        "layout": lowering.layout_of(fake.shape, F32, CUDA),
        "call_sizes": [nodes[0].get_size()[0]],
    }


def choice(rows: int, columns: int = 8) -> dict[str, int]:
    return {"num_warps": 4, "num_stages": 1, "ROWS": rows, "COLUMNS": columns}


def rendered(
    term: Term,
    tensors: Sequence[torch.Tensor],
    dynamic: bool = False,
    *,
    after: Callable[..., Any] = lambda node, x: node,
    lower: Callable[..., Any] | None = None,
) -> str:
    """The code of a graph whose only kernel is the template.

    after: lowers more, of the template's output and x.
    """

    def own(x: Any, y: Any, size: Any) -> Any:
        body = body_of(x, y, size, term)
        return after(templates.best_of(sample(), "gdpa_compat", [choice(4)], body, {}, [size]), x)

    with lowering_by(lower or own):
        return render.wrapper(lambda x, y: probe(x, y, x.shape[0]), tensors, dynamic=dynamic)


def run(code: str, tensors: Sequence[torch.Tensor], monkeypatch: Any) -> torch.Tensor:
    """What the template writes, by Triton's interpreter."""
    from triton.runtime import interpreter

    from tests.kernels.interpret import _mend_loop_bounds

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", interpreter._patch_lang_tensor)
    _mend_loop_bounds()
    ((name, source),) = render.kernels(code).items()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    text = render.bare(source)
    namespace: dict[str, Any] = {}
    exec(compile(text, PyCodeCache.write(text)[1], "exec"), namespace)
    function, size = namespace[name], tensors[0].shape[0]
    out = torch.full(tensors[0].shape, torch.nan)
    buffers = {"arg_X": tensors[0], "arg_Y": tensors[1]}
    args = [
        buffers.get(word, out if word.startswith(("out_ptr", "in_out")) else size)
        for word in function.arg_names
    ]
    (called,) = re.findall(rf"{name}\.run\((.*), stream=", code)
    ctas = called.split(", ")[-3:]
    values = dict.fromkeys(re.findall(r"[a-z]\w*", " ".join(ctas)), size)
    function[tuple(eval(part, {}, values) for part in ctas)](*args)
    return out


@contextlib.contextmanager
def timed(seconds: Callable[[Any], float], seen: list[Any]) -> Iterator[None]:
    """Choices take as long as `seconds` says, by name. Those that are no templates run, on the CPU.

    seen: gets (name, operands, output) of each.
    """

    def example(node: Any, hint_override: Any = None) -> torch.Tensor:
        layout = getattr(node, "layout", node)
        sizes = [lowering.likely_size(size) for size in layout.size]
        return torch.ones(sizes, dtype=layout.dtype)

    def benchmark(cls: Any, choice: Any, args: Any) -> float:
        extern = isinstance(choice, ExternKernelCaller)
        inputs, out = args.get_benchmark_tensors(extern).unpack()
        if extern:
            choice.to_callable()(*inputs, out=out)
        seen.append((choice.name, inputs, out))
        return seconds(choice.name)

    patches = {
        "benchmark_example_value": staticmethod(example),
        "benchmark_choice": classmethod(benchmark),
        "make_precompile_fn": lambda *_, **__: lambda: None,
    }
    patched = mock.patch.multiple(AlgorithmSelectorCache, **patches)
    with config.patch(autotune_local_cache=False), patched:  # nothing is known from before
        yield
