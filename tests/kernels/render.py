"""From a function of tensors to the code that Inductor writes for it on a faked CUDA device."""

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from unittest import mock

import jinja2
import torch
from torch._inductor import config
from torch._inductor.codecache import PyCodeCache as PyCodeCache
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.overrides import TorchFunctionMode

from gdpa_inductor import lowerings
from gdpa_inductor.lowerings.triton import launch

from .fake_cuda import fake_cuda

# Plans share few sources, and Inductor compiles a source for each plan.
jinja2.Environment.compile = functools.cache(jinja2.Environment.compile)

_KERNEL = re.compile(
    r"^(\w+) = async_compile\.triton\('\w+', '''\n(.*?)''', device_str=", re.M | re.S
)


def wrapper(
    function: Callable,
    tensors: Sequence[torch.Tensor],
    capability: int = 90,
    choice: int = 0,
    dynamic: bool = False,
    wide: bool = False,
    processors: int = 0,
    decomposed: bool = False,
    donated: Sequence[int] = (),
) -> str:
    """The Python source of the compiled graph of `function(*tensors)`, all on `cuda:0`.

    tensors: only their shapes, strides and dtypes count. choice: which configuration of each
    template is taken (the last if there are fewer). dynamic: every size above 1 is a symbol.
    wide: index as if an operand had 2³¹ elements. processors: see `fake_cuda`. decomposed: the
    graph is traced to the operations that Inductor lowers, as it does itself. donated: inputs of a
    backward that nobody else needs.
    """
    lowerings.register()
    with (
        fake_cuda(capability, processors),
        _one_configuration(choice),
        config.patch(fx_graph_cache=False),
    ):
        shape_env = ShapeEnv()
        mode = FakeTensorMode(shape_env=shape_env)
        inputs = [_fake(mode, tensor, i, dynamic) for i, tensor in enumerate(tensors)]
        with mode:
            table = select_decomp_table() if decomposed else None
            make = make_fx(function, table, tracing_mode="real", _allow_non_fake_inputs=True)
            traced = make(*inputs)
        graph = GraphLowering(
            traced, example_inputs=inputs, shape_env=shape_env, is_inference=False,
            is_backward=bool(donated),
        )  # fmt: skip
        graph.bw_donated_idxs = list(donated)
        handlers = (V.set_graph_handler(graph), V.set_fake_mode(mode))
        debug = V.set_debug_handler(DebugContext())
        with handlers[0], handlers[1], debug, _indices(wide), _Indexing():
            graph.run(*inputs)
            written = graph.codegen()[0]
    return getattr(written, "value", written)


def kernels(source: str) -> dict[str, str]:
    """The Triton kernels of a wrapper: name to module text."""
    return dict(_KERNEL.findall(source))


def bare(kernel: str) -> str:
    """A kernel's module without Inductor's launcher: what is left is `@triton.jit def ...`."""
    return re.sub(
        r"^@triton_heuristics\.\w+\(.*?^\)\n(?=@triton\.jit)", "", kernel, flags=re.M | re.S
    )


def _fake(mode: FakeTensorMode, tensor: torch.Tensor, number: int, dynamic: bool) -> torch.Tensor:
    with mode:
        empty = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda"
        )
    if not dynamic:
        return empty
    real = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    last = max(1, tensor.dim() - 1)  # of a matrix, the width is known
    kinds = [DimDynamic.DUCK if i < last else DimDynamic.STATIC for i in range(tensor.dim())]
    context = StatelessSymbolicContext(kinds)
    symbolic = mode.from_tensor(real, symbolic_context=context, static_shapes=False)
    with mode:
        return torch.empty_strided(
            symbolic.shape, symbolic.stride(), dtype=tensor.dtype, device="cuda"
        )


def _indices(wide: bool) -> contextlib.AbstractContextManager:
    """Whether 32 bits are enough is asked of the operands' sizes; here it is answered."""
    if not wide:
        return contextlib.nullcontext()
    refuse = staticmethod(lambda *_: False)
    return mock.patch.object(TritonScheduling, "can_use_32bit_indexing", refuse)


class _Indexing(TorchFunctionMode):
    """`x[i]` asks for a guard of the device, which builds of torch for CPUs do not have; the same
    by operators that do not ask."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is not torch.Tensor.__getitem__:
            return function(*args, **(kwargs or {}))
        result, index = args
        if isinstance(index, torch.Tensor):
            return torch.ops.aten.index.Tensor(result, [index])
        dim = 0
        for part in index if isinstance(index, tuple) else (index,):
            if part is None:
                result = result.unsqueeze(dim)
            elif isinstance(part, slice):
                result = torch.ops.aten.slice.Tensor(result, dim, part.start, part.stop)
            else:
                result, dim = result.select(dim, part), dim - 1
            dim += 1
        return result


class _one_configuration:
    """Without a device nothing can be benchmarked, so each template gets one configuration."""

    def __init__(self, choice: int) -> None:
        self.choice = choice

    def __enter__(self) -> None:
        self.known = launch.configs
        launch.configs = lambda *given: self.known(*given)[: self.choice + 1][-1:]

    def __exit__(self, *_: object) -> None:
        launch.configs = self.known
