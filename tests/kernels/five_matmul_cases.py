"""Problems for the backward in one kernel: a table.

Operands are fp16, which the interpreter multiplies exactly, and of a width that the kernel is for;
the device has one multiprocessor, so that a few heads are enough for it.
"""

from typing import Any

from .cases import SILU, Case
from .jagged_cases import LENGTHS, OTHERS, JaggedCase

TAKEN: dict[str, Any] = {
    "d": 128, "dv": 100, "half": True, "processors": 1, "tolerance": 4e-3,
    "options": "kernel=triton,fast_math=False,strict=True",
}  # fmt: skip
COLUMNS = "a0:f[b,h,kv_idx]; mul(sigmoid(mul(s,0.05)),a0)"
BIAS = "a0:f[q_idx,kv_idx]; silu(add(mul(s,0.05),a0))"
PER_TOKEN = "a0:f[q,h]; a1:f[k]; mul(silu(add(mul(s,0.05),a0)),a1)"

CASES = [
    *(Case(f"five_{i}", SILU, m=150, n=140, choice=i, **TAKEN) for i in range(2)),
    Case("five_even", SILU, m=128, n=256, choice=0, **TAKEN),
    Case("five_columns", COLUMNS, m=70, n=150, needs="qkv0", **TAKEN),
    Case("five_bias", BIAS, m=70, n=150, needs="qk0", **TAKEN),
    Case("five_wide", "sigmoid(s)", m=70, n=30, dynamic=True, wide=True, **TAKEN),
    *(
        JaggedCase(f"five_jagged_{i}", SILU, lengths_q=LENGTHS, same=True, choice=i, **TAKEN)
        for i in range(2)
    ),
    JaggedCase(
        "five_jagged_both", "sigmoid(s)", lengths_q=LENGTHS, lengths_k=OTHERS, dynamic=True,
        **TAKEN,
    ),
    JaggedCase("five_jagged_batch", SILU, lengths_q=LENGTHS, same=True, dynamic=True, **TAKEN),
    JaggedCase("five_jagged_truncated", SILU, lengths_q=LENGTHS, same=True, max_q=40, **TAKEN),
    JaggedCase("five_jagged_keys", SILU, lengths_q=LENGTHS, n=130, view="split", **TAKEN),
    JaggedCase("five_jagged_queries", "sigmoid(s)", lengths_k=OTHERS, m=40, **TAKEN),
    JaggedCase(
        "five_jagged_unowned", "sigmoid(s)", lengths_q=(3, 0, 20, 0), lengths_k=(0, 4, 5, 0),
        before=3, after=300, max_q=16, **TAKEN,
    ),
    JaggedCase(
        "five_jagged_per_token", PER_TOKEN, lengths_q=LENGTHS, lengths_k=OTHERS,
        needs="qkv1", after=3, **TAKEN,
    ),
]  # fmt: skip
