"""The lowering of P and dS of a chunk to the CuTe kernel: one call in the generated code.

`gdpa::attention_weights_cute` has the arguments of `gdpa::attention_weights`, and returns P and dS.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...kernels.cute.weights import weights
from ...operands import score_shape
from ...ops import Arguments, Signature
from ..call import Call, extern_call
from .calls import KEYWORDS, Site, on_its_device

_LIBRARY = torch.library.Library("gdpa", "FRAGMENT")
WEIGHTS = Signature("attention_weights_cute", backward=True, keywords=KEYWORDS)


def lower(call: Call) -> list[Any]:
    """[P, dS], contiguous [B,H,M,N] in the query's dtype. Inductor IR in and out."""
    options = {"fast": call.options.fast_math, "skip": call.options.skip}
    callee = (__name__, "weights_site", repr(call.static))
    return list(extern_call(WEIGHTS, call.on_its_device(**options), callee))


def weights_site(known: bool) -> Site:
    return Site(WEIGHTS, _weights, known)


def _weights(arguments: Arguments[Tensor], **known: Any) -> list[Tensor]:
    a = arguments
    return weights(a.grad_out, a.operands, **a.options, **known)


def _fakes(arguments: Arguments[Tensor]) -> list[Tensor]:
    o = arguments.operands
    return [o.query.new_empty(score_shape(o)) for _ in range(2)]


WEIGHTS.register(_LIBRARY, "CUDA", on_its_device(_weights), _fakes)
