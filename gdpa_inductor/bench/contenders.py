"""The contenders: a table from a name to a function that builds what is measured.

Softmax attentions compute something else. They are anchors: they show what a fused kernel with the
same products reaches on the same machine on the same day.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .cases import Function

COPY = "copy"
Builder = Callable[[Function], Function]


def compiled(backend: str, mode: str | None = None) -> Builder:
    return lambda function: torch.compile(function, backend=backend, mode=mode)


def gdpa(dynamic: bool | None = None, **options: object) -> Builder:
    """dynamic: as torch.compile takes it. options: ours, by their names without `gdpa.`"""

    def build(function: Function) -> Function:
        from gdpa_inductor import gdpa_backend

        chosen: dict[str, Any] = {f"gdpa.{name}": value for name, value in options.items()}
        return torch.compile(function, backend=gdpa_backend, dynamic=dynamic, options=chosen)

    return build


def sdpa(backend: str) -> Builder:
    def build(function: Function) -> Function:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return F.scaled_dot_product_attention(q, k, v)

        return attend

    return build


def copy(function: Function) -> Function:
    """Of a cache: reads its keys, and writes as many bytes as its values have."""
    return lambda query, key, *others: key.clone()


def flex(function: Function) -> Function:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


CONTENDERS: dict[str, Builder] = {
    "gdpa": gdpa(),
    # Whatever is right, however small: what the cost model is judged by.
    "gdpa-always": gdpa(profit=False),
    # By its kernel, whatever the cost model says.
    "gdpa-chunked": gdpa(kernel="chunked", profit=False),
    "gdpa-triton": gdpa(kernel="triton", profit=False),
    "gdpa-atomic": gdpa(deterministic=False),
    "gdpa-exact": gdpa(fast_math=False),
    "inductor": compiled("inductor"),
    # Without CUDA graphs, which at these sizes only blur what the kernels take.
    "max-autotune": compiled("inductor", "max-autotune-no-cudagraphs"),
    "eager": lambda function: function,
    "cudnn": sdpa("CUDNN_ATTENTION"),
    "flash": sdpa("FLASH_ATTENTION"),
    "flex": flex,
    COPY: copy,
}

ANCHORS = frozenset({"cudnn", "flash", "flex"})
# They compute something else, and are not compared with eager.
OTHERS = ANCHORS | {COPY}
