"""The contenders: a table from a name to a builder.

A builder takes the formula of a case, and returns the function that runs in place of it.

Softmax attentions compute other values. They are anchors: they show the speed of a fused kernel
with the same products, on the same machine on the same day.
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
    """The builder for this package.

    dynamic:  The argument `dynamic` of torch.compile.
    options:  Options of this package. Their names are without `gdpa.`
    """

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
    """The contender for caches. It reads the keys and writes as many bytes as the values have.

    Its time is that of the memory traffic alone.
    """
    return lambda query, key, *others: key.clone()


def flex(function: Function) -> Function:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


CONTENDERS: dict[str, Builder] = {
    "gdpa": gdpa(),
    # All regions are rewritten, also small ones. The cost model is judged by this contender.
    "gdpa-always": gdpa(profit=False),
    # The named backend runs, whatever the cost model would choose.
    "gdpa-chunked": gdpa(kernel="chunked", profit=False),
    "gdpa-triton": gdpa(kernel="triton", profit=False),
    "gdpa-atomic": gdpa(deterministic=False),
    "gdpa-exact": gdpa(fast_math=False),
    "inductor": compiled("inductor"),
    # Without CUDA graphs, which at these sizes only add noise to the time of the kernels.
    "max-autotune": compiled("inductor", "max-autotune-no-cudagraphs"),
    "eager": lambda function: function,
    "cudnn": sdpa("CUDNN_ATTENTION"),
    "flash": sdpa("FLASH_ATTENTION"),
    "flex": flex,
    COPY: copy,
}

ANCHORS = frozenset({"cudnn", "flash", "flex"})
# They compute other values, and are not compared with eager.
OTHERS = ANCHORS | {COPY}
