"""Programs with a term whose rows are summed: the forward stores these beside the output, and in a
backward the gradient of the sums is one more operand.
"""

from .cases import Case
from .jagged_cases import JaggedCase

SIGMOID = "t0=sigmoid(s); r=t0; t0"
ABSOLUTE = "t0=where(ge(q_idx,kv_idx),mul(s,0.25),0.0); r=abs(t0); t0"
OTHER_MASK = (
    "a0:b[b,-,q_idx,kv_idx]; t0=relu(s); r=where(a0,t0,0.0); where(ge(q_idx,kv_idx),t0,0.0)"
)
ONLY_SUMS = "a0:f[h,kv_idx]; r=exp(mul(a0,0.25)); mul(silu(s),a0)"
# as `ScoreMod.with_row_gradient` has it
BACKWARD = "a0:f[b,h,q_idx]; t0=where(ge(q_idx,kv_idx),tanh(s),0.0); r=mul(a0,abs(t0)); t0"
LENGTHS = (37, 0, 150, 1, 64)
SELF = {"lengths_q": LENGTHS, "same": True}

CASES = [
    Case("sums", SIGMOID),
    Case("sums_tail", SIGMOID, m=19, n=37),
    Case("sums_inference", SIGMOID, m=150, n=140, needs=""),
    Case("sums_few", SIGMOID, m=3, n=1100, needs=""),
    Case("sums_one_row", SIGMOID, m=1, n=40),
    Case("sums_gqa", SIGMOID, m=19, h=4, hk=2, hv=2),
    Case("sums_no_keys", SIGMOID, n=0),
    Case("sums_dynamic", SIGMOID, dynamic=True),
    Case("sums_absolute", ABSOLUTE, m=150, n=140),
    Case("sums_other_mask", OTHER_MASK, m=70, n=90, needs="qkv"),
    Case("sums_of_an_operand", ONLY_SUMS, m=19, n=37, needs="qkv0"),
    Case("sums_gradient", BACKWARD, m=150, n=140),
    Case("sums_gradient_tail", BACKWARD, m=19, n=37),
    JaggedCase("sums_jagged", SIGMOID, **SELF),
    JaggedCase("sums_jagged_absolute", ABSOLUTE, **SELF),
    JaggedCase("sums_jagged_keys", SIGMOID, lengths_k=LENGTHS, m=8, bq=1),
    JaggedCase("sums_jagged_queries", SIGMOID, lengths_q=LENGTHS, n=19, bk=1),
    JaggedCase(
        "sums_jagged_gradient", "a0:f[q,h]; t0=tanh(s); r=mul(a0,abs(t0)); t0", after=3, **SELF
    ),
]  # fmt: skip
