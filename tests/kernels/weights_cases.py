"""Problems for the kernel of P, dS and terms of aux operands, whose results are scores."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gdpa_inductor.lowerings import weights
from gdpa_inductor.operands import Operands
from gdpa_inductor.ops import Arguments

from .cases import CAUSAL, HALF, PREFIX, SEGMENTS, SILU, WINDOW, Case, in_dtype


@dataclass(frozen=True)
class WeightsCase(Case):
    """Keys and values have a head for each head of the query."""

    def function(self) -> Callable:
        weights.register()

        def run(grad_out, query, key, value, *aux):
            operands = (query, key, value, list(aux), list(self.scalars), self.program)
            more = self.needed, self.options
            return torch.ops.gdpa.attention_weights(grad_out, *operands, *more)

        return run

    def expected(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        grad_out, query, key, value, *aux = in_dtype(tensors, torch.float64)
        operands = Operands(query, key, value, aux, self.scalars, self.mod)
        return weights.terms(Arguments(operands, grad_out, tuple(self.needed)))

    def likes(self, tensors: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """The results lie as scores, and not as operands."""
        return [None] * len(self.mod.summed_terms(self.needed))


LATER = "a0:i[-,-,-,-]; where(ge(add(q_idx,a0),kv_idx),silu(mul(s,0.25)),0.0)"
GATED = "a0:f[h,q_idx,kv_idx]; a1:f[q_idx]; a2:f[kv_idx]; mul(silu(add(add(s,a0),a1)),a2)"
TABLE = "a0:f[h,t]; silu(add(s,lookup(a0,add(sub(q_idx,kv_idx),69))))"
CASES = [
    WeightsCase("weights", SILU),
    WeightsCase("weights_tail", SILU, m=37, n=53),
    WeightsCase("weights_parts", SILU, m=70, n=1100, b=1, h=1),
    WeightsCase("weights_channels", SILU, m=19, n=21, d=88, dv=40),
    WeightsCase("weights_channels_few", SILU, m=19, n=21, d=3, dv=17),
    WeightsCase("weights_only_p", SILU, m=19, n=21, needs="v"),
    WeightsCase("weights_only_ds", SILU, m=19, n=21, needs="k"),
    WeightsCase("weights_split", SILU, m=37, n=53, view="split"),
    WeightsCase("weights_transposed", SILU, m=37, n=53, view="transposed"),
    WeightsCase("weights_causal", CAUSAL, m=70, n=600, b=1),
    WeightsCase("weights_causal_below", CAUSAL, m=150, n=70, b=1),
    WeightsCase("weights_later", LATER, m=70, n=140),
    WeightsCase("weights_window", WINDOW, m=150, n=140, scalars=(9,)),
    WeightsCase("weights_prefix", PREFIX, m=40, n=300, b=1),
    WeightsCase("weights_segments", SEGMENTS, m=150, n=140),
    WeightsCase("weights_without_skips", CAUSAL, m=70, n=140, options="skip=False"),
    WeightsCase("weights_terms", GATED, m=37, n=53, needs="qkv012"),
    WeightsCase("weights_table", TABLE, m=37, n=53, places=120),
    WeightsCase("weights_flat", "a0:f[q_idx,kv_idx]; a0", m=37, n=53, needs="v0"),
    WeightsCase("weights_one", SILU, m=1, n=1, d=3, dv=3, b=1, h=1),
    WeightsCase("weights_wide", SILU, m=130, n=90, d=192, dv=256, b=1, h=1, choice=0, **HALF),
    WeightsCase("weights_wide_causal", CAUSAL, m=300, n=290, d=160, dv=192, b=1, h=1, choice=0,
                **HALF),
]  # fmt: skip
