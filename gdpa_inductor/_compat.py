"""Every private torch symbol that the package uses, and the versions it was checked on.

Checked on torch 2.11.0 and 2.13.0 unless a line says otherwise. Imports of torch._inductor are inside the functions, so
that importing this module costs nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters  # a defaultdict(Counter), reset by torch._dynamo.reset
from torch._logging import trace_structured  # tlparse artifacts

__all__ = ["compile_with_inductor", "counters", "inductor_config", "keep_saved_buffers", "trace_artifact"]


def trace_artifact(name: str, payload: Callable[[], str]) -> None:
    """Leave a text in the structured trace log; `payload` runs only if someone records it."""
    trace_structured("artifact", metadata_fn=lambda: {"name": name, "encoding": "string"}, payload_fn=payload)


def inductor_config(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Inductor's settings for `mode` and `options`, checked as torch.compile checks them."""
    wrapper = torch._TorchCompileInductorWrapper(mode, dict(options or {}), dynamic=None)
    return dict(wrapper.config)


@contextlib.contextmanager
def cache_key_tag(tag: str) -> Iterator[None]:
    """Add `tag` to the keys of FxGraphCache and AOTAutogradCache."""
    config: Any = torch.compiler.config
    with config.patch(cache_key_tag=f"{config.cache_key_tag}{tag}"):
        yield


def compile_with_inductor(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], settings: dict[str, Any], tag: str
) -> Callable[..., Any]:
    """compile_fx under the cache tag; the tag also covers a backward graph that is compiled later."""
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def inner(*args: Any, **kwargs: Any) -> Any:
        if tag in torch.compiler.config.cache_key_tag:
            return compile_fx_inner(*args, **kwargs)
        with cache_key_tag(tag):
            return compile_fx_inner(*args, **kwargs)

    with cache_key_tag(tag):
        return compile_fx(gm, list(inputs), inner_compile=inner, config_patches=settings)


@contextlib.contextmanager
def keep_saved_buffers(on: bool = True) -> Iterator[None]:
    """Compile backwards that may run again over one forward: they do not reuse saved buffers."""
    from torch._functorch import config

    with config.patch(donated_buffer=False) if on else contextlib.nullcontext():
        yield
