"""Few rows over many keys: the forward in shares of the keys, whose partial sums are added."""

import torch

from .cases import CAUSAL, SILU, Case
from .jagged_cases import JaggedCase

# A query sees the keys up to its own place, which is counted from the end.
LAST = "a0:i[b]; where(le(kv_idx,add(a0,q_idx)),silu(mul(s,0.25)),0.0)"
LENGTH = "a0:i[b]; where(lt(kv_idx,mul(a0,100)),sigmoid(s),0.0)"
MASK = "a0:b[b,q_idx,kv_idx]; mul(silu(mul(s,0.25)),float(a0))"
WINDOW = "where(gt(kv_idx,add(q_idx,600)),silu(mul(s,0.25)),0.0)"
BIAS = "a0:f[h,q_idx,kv_idx]; sigmoid(add(mul(s,0.25),a0))"
KEYS = (700, 0, 1, 255, 513)
FEW = {"m": 3, "n": 1100, "b": 2, "needs": ""}

CASES = [
    Case("split", "sigmoid(s)", **FEW),
    Case("split_even", SILU, m=16, n=1024, b=1, h=1, needs=""),
    Case("split_row", SILU, m=1, n=1027, b=1, h=1, needs=""),
    Case("split_gqa", SILU, h=4, hk=2, hv=2, **FEW),
    Case("split_queries_shared", SILU, bq=1, **FEW),
    Case("split_tall", SILU, m=100, n=1030, b=1, h=1, needs=""),
    Case("split_half", SILU, half=True, tolerance=4e-3, options="fast_math=False,strict=True",
         **FEW),
    Case("split_wide", SILU, wide=True, **FEW),
    Case("split_dynamic", "sigmoid(s)", dynamic=True, **FEW),
    Case("split_causal", CAUSAL, **FEW),
    Case("split_window", WINDOW, **FEW),
    Case("split_last", LAST, **FEW),
    Case("split_length", LENGTH, **FEW),
    Case("split_mask", MASK, blocks=40, **FEW),
    Case("split_bias", BIAS, **FEW),
    Case("split_trained", SILU, m=3, n=1030, b=1),
    JaggedCase("split_keys", "sigmoid(s)", m=3, lengths_k=KEYS, needs=""),
    JaggedCase("split_keys_seeds", SILU, m=1, bq=1, lengths_k=KEYS, offsets=torch.int64, needs=""),
    JaggedCase("split_keys_unowned", "sigmoid(s)", m=3, lengths_k=KEYS, max_k=600, before=3,
               after=40, needs=""),
    JaggedCase("split_keys_length", LENGTH, m=3, lengths_k=KEYS, needs=""),
    JaggedCase("split_keys_mask", MASK, m=3, lengths_k=KEYS, needs=""),
    JaggedCase("split_keys_dynamic", SILU, m=3, lengths_k=KEYS, dynamic=True, needs=""),
    JaggedCase("split_both", "sigmoid(s)", lengths_q=(3, 0, 20, 1, 2), lengths_k=KEYS, needs=""),
    JaggedCase("split_both_unowned", "sigmoid(s)", lengths_q=(3, 0, 20, 1, 2), lengths_k=KEYS,
               before=3, after=200, max_q=16, needs=""),
    JaggedCase("split_both_many", SILU, lengths_q=(1,) * 260, lengths_k=(1100, *(1,) * 259), h=1,
               processors=2000, needs=""),
    JaggedCase("split_both_causal", CAUSAL, lengths_q=(3, 0, 20, 1, 2), lengths_k=KEYS, needs=""),
]  # fmt: skip
