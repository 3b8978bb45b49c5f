"""Problems for the backward of few rows in one kernel: a table.

Operands are fp16, which the interpreter multiplies exactly.
"""

from typing import Any

from .cases import SILU, Case

TAKEN: dict[str, Any] = {
    "d": 32, "dv": 32, "half": True, "tolerance": 4e-3,
    "options": "kernel=triton,fast_math=False,strict=True",
}  # fmt: skip
COLUMNS = "a0:f[b,h,kv_idx]; mul(sigmoid(mul(s,0.05)),a0)"
BIAS = "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.05),a0))"
PADDING = "a0:b[b,-,-,kv_idx]; where(a0,sigmoid(s),0.0)"
CAUSAL = "where(ge(add(q_idx,300),kv_idx),silu(mul(s,0.25)),0.0)"

CASES = [
    Case("few", SILU, m=48, n=256, b=3, **TAKEN),
    Case("few_even", SILU, m=64, n=320, processors=1, **TAKEN),
    Case("few_tail", "sigmoid(s)", m=3, n=301, **TAKEN),
    Case("few_row", "exp(mul(s,0.125))", m=1, n=259, **TAKEN),
    Case("few_shares", "sigmoid(s)", m=21, n=1111, b=1, **TAKEN),
    Case("few_shares_even", SILU, m=64, n=1024, b=1, h=1, **TAKEN),
    Case("few_narrow_shares", SILU, m=96, n=1111, b=1, **TAKEN),
    Case("few_queries_shared", SILU, m=5, n=300, bq=1, **TAKEN),
    Case("few_odd", SILU, m=33, n=300, **TAKEN | {"d": 24, "dv": 40}),
    Case("few_split", SILU, m=33, n=300, view="split", **TAKEN),
    Case("few_projected", SILU, m=33, n=300, view="bnhd", **TAKEN),
    Case("few_transposed", SILU, m=33, n=300, view="transposed", **TAKEN),
    Case("few_columns", COLUMNS, m=20, n=300, needs="qkv0", **TAKEN),
    Case("few_columns_shares", COLUMNS, m=20, n=1100, b=1, needs="qkv0", **TAKEN),
    Case("few_bias", BIAS, m=20, n=300, needs="qkv0", **TAKEN),
    Case("few_padding", PADDING, m=20, n=300, **TAKEN),
    Case("few_causal", CAUSAL, m=20, n=400, **TAKEN),
    Case("few_spent", SILU, m=33, n=300, b=3, spent=True, **TAKEN),
    Case("few_spent_shares", "sigmoid(s)", m=21, n=1111, b=1, spent=True, **TAKEN),
    Case("few_spent_projected", SILU, m=33, n=300, view="bnhd", spent=True, **TAKEN),
    Case("few_wide", "sigmoid(s)", m=20, n=300, wide=True, **TAKEN),
]  # fmt: skip
