"""Public kernels for the jagged cases, from a folder of the user: `--peers PATH`.

PATH has two folders. tb_gdpa/ has gdpa.py, gdpa_utils.py and math.py of tritonbench's
operators/gdpa, and an empty __init__.py. gr/generative_recommenders is the package of the
repository of that name. No code of theirs is part of this package.

In: a case. Out: a function of the operands of `jagged.formula`, with its own backward.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .cases import Case, Function
from .jagged import offsets


def meta(case: Case, **options: Any) -> Function:
    """Generalised dot-product attention of tritonbench, without masks.

    Its activation fast_gelu is gelu_tanh, computed by the instruction tanh.approx.
    """
    if (case.activation, case.variant) != ("gelu_tanh", "none"):
        raise NotImplementedError("measured for gelu_tanh without a mask")
    module: Any = importlib.import_module("tb_gdpa.gdpa")
    attention = module.generalized_dot_product_attention
    steps = torch.arange(case.batch + 1, device=case.device, dtype=torch.int32) * case.keys
    rows = offsets(case.lengths()).to(case.device)

    def attend(query: Tensor, key: Tensor, value: Tensor, ends: Tensor) -> Tensor:
        result = attention(
            query=query,
            key=key.flatten(0, 1) if case.keys else key,
            value=value.flatten(0, 1) if case.keys else value,
            query_offset=rows,
            key_offset=steps if case.keys else rows,
            output_offset=rows,
            max_seq_len_q=case.length,
            max_seq_len_kv=case.keys or case.length,
            activation="fast_gelu",
            qk_scale=1.0,
            **options,
        )
        out = result[0] if isinstance(result, tuple) else result
        return out.view(query.shape)

    return attend


def hstu(case: Case) -> Function:
    """Pointwise attention of HSTU: silu with a causal mask, divided by the greatest length.

    By default the kernel is tuned only once, for the first case. If lengths vary, its tuner may
    read illegal addresses.
    """
    if (case.activation, case.variant, case.keys) != ("silu", "causal", 0):
        raise NotImplementedError("measured for causal silu, with offsets in common")
    module: Any = importlib.import_module(
        "generative_recommenders.ops.triton.triton_hstu_attention"
    )

    def attend(query: Tensor, key: Tensor, value: Tensor, ends: Tensor) -> Tensor:
        result: Tensor = module.triton_hstu_mha(
            N=case.length, alpha=case.head_dim**-0.5, q=query, k=key, v=value, seq_offsets=ends,
            num_targets=None, max_attn_len=0, contextual_seq_len=0,
        )  # fmt: skip
        return result

    return attend


def meta_atomic(case: Case) -> Function:
    """The same kernel as `meta`, with a persistent grid, TMA copies and atomic additions to dQ."""
    return meta(case, enable_persistent=True, enable_tma=True, use_dq_atomic_add=True)


PEERS: dict[str, Callable[[Case], Function]] = {
    "meta": meta,
    "meta-atomic": meta_atomic,
    "hstu": hstu,
}


def build(name: str, case: Case, folder: str) -> Function:
    """The function of a peer for a case. Raises ImportError if the folder does not have it."""
    if not folder:
        raise ImportError(f"{name} is measured with --peers PATH only")
    sys.path[:0] = [str(Path(folder)), str(Path(folder) / "gr")]
    return PEERS[name](case)
