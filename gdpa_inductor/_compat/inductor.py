"""Inductor as a compiler: its settings, caches and passes, and compiling a graph or a function.

Imports of torch._inductor are inside the functions: the CPU kernel and the doctor need few of them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from unittest import mock

import torch
from torch._logging import trace_structured  # tlparse artifacts


def trace_artifact(name: str, payload: Callable[[], str]) -> None:
    """Leave a text in the structured trace log; `payload` runs only if someone records it."""
    trace_structured(
        "artifact", metadata_fn=lambda: {"name": name, "encoding": "string"}, payload_fn=payload
    )


def inductor_config(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Inductor's settings for `mode` and `options`, checked as torch.compile checks them."""
    wrapper = torch._TorchCompileInductorWrapper(mode, dict(options or {}), dynamic=None)
    return dict(wrapper.config)


def option_names() -> frozenset[str]:
    """The names that `options` of torch.compile may have."""
    import torch._inductor

    return frozenset(torch._inductor.list_options())


def thorough() -> bool:
    """Whether max-autotune is on."""
    from torch._inductor import config

    return bool(config.max_autotune or config.max_autotune_gemm)


@contextlib.contextmanager
def cache_key_tag(tag: str) -> Iterator[None]:
    """Add `tag` to the keys of FxGraphCache and AOTAutogradCache."""
    config: Any = torch.compiler.config
    with config.patch(cache_key_tag=f"{config.cache_key_tag}{tag}"):
        yield


def add_cache_key_tag(tag: str) -> None:
    """The same for the rest of the process."""
    # torch 2.11 does not ask a pre-grad pass for its uuid.
    config: Any = torch.compiler.config
    if tag not in config.cache_key_tag:
        config.cache_key_tag = f"{config.cache_key_tag}{tag}"


def cache_folder() -> str | None:
    """The folder of torch's compiled graphs, or None if such caches are off."""
    from torch._inductor import config

    return cache_root() if config.fx_graph_cache and not config.force_disable_caches else None


def cache_root() -> str:
    """The folder of all that Inductor keeps, whether or not it caches graphs."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return str(cache_dir())


def start_processes() -> None:
    """Begin to start Inductor's worker processes, as its own backend does. It takes seconds."""
    from torch._inductor.async_compile import maybe_warm_pool

    maybe_warm_pool()


def in_background(task: Callable[..., Any], *arguments: Any) -> Future[Any] | None:
    """Run `task`, a function of a module, in one of Inductor's processes; None: there are none."""
    from torch._inductor.async_compile import AsyncCompile, get_compile_threads

    if get_compile_threads() <= 1:
        return None
    AsyncCompile.use_process_pool()  # starts them; it waits for none
    future: Future[Any] = AsyncCompile.process_pool().submit(task, *arguments)
    return future


_AS_EAGER = ("fallback_random", "align_random_eager")  # torch 2.11 lacks the latter


def draws_as_eager() -> bool:
    """Whether the user asks for eager's random numbers."""
    from torch._inductor import config

    return any(getattr(config, name, False) for name in _AS_EAGER)


def random_settings(settings: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """A context in which those of these settings hold that random numbers depend on."""
    from torch._inductor import config

    return config.patch({name: settings[name] for name in _AS_EAGER if name in settings})


def seed_op() -> Any:
    """`inductor_seed(Device device) -> Tensor`: what random numbers of a call begin with."""
    from torch._inductor import inductor_prims

    return inductor_prims.seed


def seeds_op() -> Any:
    """`inductor_seeds(int count, Device device) -> Tensor`: what all of those become."""
    from torch._inductor import inductor_prims

    return inductor_prims.seeds


def custom_graph_pass() -> Any:
    """The base class that Inductor requires for a pass with a uuid."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    return CustomGraphPass


def compile_with_inductor(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], settings: dict[str, Any], tag: str
) -> Callable[..., Any]:
    """compile_fx under the cache tag, which also covers a backward that is compiled later."""
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def inner(*args: Any, **kwargs: Any) -> Any:
        if tag in torch.compiler.config.cache_key_tag:
            return compile_fx_inner(*args, **kwargs)
        with cache_key_tag(tag):
            return compile_fx_inner(*args, **kwargs)

    with cache_key_tag(tag):
        return compile_fx(gm, list(inputs), inner_compile=inner, config_patches=settings)


def drops_roundings() -> bool:
    """Whether Inductor's C++ drops a rounding to 16 bits and back where it should keep it."""
    # torch 2.11 does, and 2.13 does not. 2.12 was not checked.
    return tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


@dataclass(frozen=True)
class CompiledGraph:
    run: Callable[..., Any]
    fits: Callable[[Sequence[torch.Tensor]], bool]  # whether `run` holds for shapes and strides


@functools.cache
def _unannounced_tracer() -> type:
    """make_fx's tracer, without the flag of the process that fx is tracing."""
    # While it is set, compiled functions raise an error in all threads. Since torch 2.14 each
    # thread has its own, and this changes nothing.
    from torch.fx import _symbolic_trace
    from torch.fx.experimental.proxy_tensor import PythonKeyTracer

    plain: Any = _symbolic_trace.Tracer.trace
    plain = getattr(plain, "_torchdynamo_orig_callable", plain)
    own = dict(vars(_symbolic_trace))  # the flag is a global of the module
    trace = FunctionType(plain.__code__, own, "trace", plain.__defaults__, plain.__closure__)
    return type("UnannouncedTracer", (PythonKeyTracer,), {"trace": trace})


def compile_graph(
    function: Callable[..., Any],
    examples: Sequence[torch.Tensor],
    *,
    dynamic: bool,
    aot: bool,
    tag: str = "",
) -> CompiledGraph:
    """Have Inductor compile `function`, at run time, without Dynamo.

    It returns a tuple, or its last calls are `copy_` to its arguments.

    dynamic: every size but 0 and 1 is a symbol, and so is every stride that is no product of sizes.
    aot: through AOTAutograd. Else Inductor gets the graph as it is, and a GPU's kernels of bf16
    chunks had larger errors (torch 2.11). tag: added to the keys of caches.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental import proxy_tensor
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils._python_dispatch import _disable_current_modes

    def flat(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = function(*tensors)
        return results if isinstance(results, tuple) else ()

    with _disable_current_modes(), torch.no_grad(), torch.inference_mode(False):
        with mock.patch.object(proxy_tensor, "PythonKeyTracer", _unannounced_tracer()):
            make = proxy_tensor.make_fx(
                flat,
                decomposition_table=None if aot else select_decomp_table(),
                tracing_mode="symbolic" if dynamic else "fake",
            )
            traced = make(*examples)
        for owner in (traced, traced.graph):  # the keys of caches have it
            owner._tracer_cls = proxy_tensor.PythonKeyTracer
        traced.shape_env = None  # which no key of a cache can have; that of the inputs is the same
        fakes = [node.meta["val"] for node in traced.graph.nodes if node.op == "placeholder"]
        mode = fakes[0].fake_mode
        mode.shape_env = mode.shape_env or ShapeEnv()  # without one, caches leave the graph out
        # Else its C++ leaves out a rounding to 16 bits and back. The caller may itself be captured.
        settings: dict[str, Any] = {"emulate_precision_casts": True, "triton.cudagraphs": False}
        # A pass for the whole process (GDPAPass) is for models: it would count this graph as one.
        settings["pre_grad_custom_pass"] = None
        if not dynamic:  # it is kept by sizes and strides: no call need check them again
            settings["size_asserts"] = False
        kernels: list[Callable[[list[torch.Tensor]], Any]] = []

        def noted(*args: Any, **kwargs: Any) -> Any:
            kernels.append(compile_fx_inner(*args, **kwargs))
            return kernels[-1]

        with tracing(TracingContext(mode)), config.patch(settings), cache_key_tag(tag):
            if aot:
                run = compile_fx(traced, fakes, inner_compile=noted)
            else:
                noted(traced, fakes, is_inference=True)
        # Nothing is left for what wraps the kernel: that is half of the time.
        if not aot or (not dynamic and len(kernels) == 1):
            run = lambda *tensors: kernels[0](list(tensors))

    guards = mode.shape_env.produce_guards_expression(fakes) if dynamic else None
    code = compile(guards, "<guards>", "eval") if guards else None

    def fits(tensors: Sequence[torch.Tensor]) -> bool:
        return code is None or bool(mode.shape_env.evaluate_guards_expression(code, tensors))

    return CompiledGraph(run, fits)
