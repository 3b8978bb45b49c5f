"""An operator whose lowering is a test's: it runs while Inductor lowers a graph, as ours do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from gdpa_inductor._compat import lowering

Lower = Callable[..., Any]  # (x, y, size) as Inductor's IR, to IR

CPU = torch.device("cpu")

_LIBRARY = torch.library.Library("gdpa_compat", "FRAGMENT")
_LIBRARY.define("probe(Tensor x, Tensor y, SymInt size) -> Tensor")
_LIBRARY.define("noted(Tensor x, Tensor y) -> Tensor")
probe = torch.ops.gdpa_compat.probe.default
noted = torch.ops.gdpa_compat.noted.default
_lower: list[Lower] = []


def meaning(x: torch.Tensor, y: torch.Tensor, size: int) -> torch.Tensor:
    """What `probe` computes: a new tensor like x."""
    return x + y * size


def site(argument: object) -> Callable[..., torch.Tensor]:
    """What generated code may call for `noted`. It is made once for each call site."""

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        calls.append(argument)
        return x * y

    sites.append(argument)
    return run


sites: list[object] = []
calls: list[object] = []

_LIBRARY.impl("probe", meaning, "CPU")
_LIBRARY.impl("noted", lambda x, y: x * y, "CPU")
torch.library.register_fake("gdpa_compat::probe", lambda x, y, size: torch.empty_like(x))
torch.library.register_fake("gdpa_compat::noted", lambda x, y: torch.empty_like(x * y))


def _current(*nodes: Any) -> Any:
    return _lower[-1](*nodes)


class lowering_by:
    """A context in which `probe` is lowered so."""

    def __init__(self, lower: Lower) -> None:
        self.lower = lower

    def __enter__(self) -> None:
        lowering.register_lowering(probe, _current)
        _lower.append(self.lower)

    def __exit__(self, *_: object) -> None:
        _lower.pop()


def code_of(
    function: Callable,
    tensors: Sequence[torch.Tensor],
    lower: Lower,
    dynamic: bool = False,
    donated: Sequence[int] = (),
    cpp: bool = False,
) -> str:
    """The source that Inductor writes for `function(*tensors)` on a CPU. Nothing is compiled.

    donated: inputs of a backward that nobody else needs.
    """
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    fakes = [_fake(mode, tensor, dynamic) for tensor in tensors]
    with mode:
        traced = make_fx(function, select_decomp_table(), tracing_mode="real")(*fakes)
    with config.patch(fx_graph_cache=False):
        kind = {"is_inference": not donated, "is_backward": bool(donated), "cpp_wrapper": cpp}
        graph = GraphLowering(traced, example_inputs=fakes, shape_env=env, **kind)
        graph.bw_donated_idxs = list(donated)
        handlers = (V.set_graph_handler(graph), V.set_fake_mode(mode))
        debug = V.set_debug_handler(DebugContext())
        with handlers[0], handlers[1], debug, lowering_by(lower):
            graph.run(*fakes)
            written = graph.codegen()[0]
    return getattr(written, "value", written)


def _fake(mode: FakeTensorMode, tensor: torch.Tensor, dynamic: bool) -> torch.Tensor:
    if not dynamic:
        return mode.from_tensor(tensor, static_shapes=True)
    context = StatelessSymbolicContext([DimDynamic.DUCK] * tensor.dim())
    return mode.from_tensor(tensor, symbolic_context=context)


def during(look: Callable[..., Any], *tensors: torch.Tensor, function=None, **options) -> Any:
    """What `look(x, y, size)` returns while a graph is lowered."""
    results = []

    def lower(x, y, size):
        results.append(look(x, y, size))
        return lowering.lowered(torch.ops.aten.add.Tensor, x, y)

    operands = tensors or (torch.ones(4, 6), torch.ones(4, 6))
    function = function or (lambda x, y: probe(x, y, x.shape[0]))
    code_of(function, operands, lower, **options)
    (result,) = results
    return result


def written(lower: Callable[..., Any], *tensors: torch.Tensor, **options) -> str:
    """The code of a graph in which `lower` is the lowering."""
    operands = tensors or (torch.ones(4, 6), torch.ones(4, 6))
    return code_of(lambda x, y: probe(x, y, x.shape[0]), operands, lower, **options)


def layout(node: Any) -> tuple[list, list]:
    return list(node.get_size()), list(node.get_stride())
