"""Programs that draw random bits: every kernel, in every tile, draws those of the reference."""

from .cases import Case
from .five_matmul_cases import TAKEN
from .jagged_cases import JaggedCase

BITS = "random16(a{},b,h,q_idx,kv_idx)"
DROPPED = f"a0:i[]; mul(mul(silu(s),float(ge({BITS.format(0)},19661))),1.4285714285714286)"
CAUSAL = (
    f"a0:i[]; mul(mul(where(ge(q_idx,kv_idx),silu(s),0.0),float(ge({BITS.format(0)},19661))),1.25)"
)
FIVE = f"a0:i[]; mul(silu(mul(s,0.05)),float(ge({BITS.format(0)},19661)))"
TWO = (
    "a0:i[]; a1:f[h,q_idx,kv_idx]; a2:i[]; "
    f"mul(mul(tanh(add(s,a1)),float(ge({BITS.format(0)},6554))),float(ge({BITS.format(2)},30000)))"
)
OF_KEYS = f"a0:f[b,h,kv_idx]; a1:i[]; mul(mul(relu(s),a0),float(ge({BITS.format(1)},19661)))"
OF_ROWS = f"a0:f[h,q_idx]; a1:i[]; mul(mul(relu(s),a0),float(ge({BITS.format(1)},19661)))"
LENGTHS = (37, 0, 150, 1, 64)
SELF = {"lengths_q": LENGTHS, "same": True}

CASES = [
    Case("dropout", DROPPED),
    Case("dropout_tail", DROPPED, m=150, n=141),
    Case("dropout_inference", DROPPED, m=19, n=37, needs=""),
    Case("dropout_causal", CAUSAL, m=150, n=140),
    Case("dropout_causal_sm80", CAUSAL, m=150, n=140, capability=80),
    Case("dropout_gqa", DROPPED, m=19, h=4, hk=2, hv=2),
    Case("dropout_shared", DROPPED, m=70, b=3, bk=1, bv=1),
    Case("dropout_seeds_shared", DROPPED, m=70, b=3, bq=1),
    Case("dropout_few", DROPPED, m=3, n=300),
    Case("dropout_few_inference", DROPPED, m=3, n=1100, needs=""),
    Case("dropout_wide", DROPPED, m=70, wide=True),
    Case("dropout_dynamic", CAUSAL, m=70, n=90, dynamic=True),
    Case("dropout_two", TWO, m=70, n=90, needs="qkv1"),
    Case("dropout_of_keys", OF_KEYS, m=70, n=90, needs="qkv0"),
    Case("dropout_of_rows", OF_ROWS, m=70, n=90, needs="qkv0"),
    Case("dropout_atomic", DROPPED, m=70, n=90,
         options="kernel=triton,strict=True,deterministic=False"),
    Case("dropout_five", FIVE, m=150, n=140, choice=0, **TAKEN),
    Case("dropout_five_other", FIVE, m=150, n=140, choice=1, **TAKEN),
    JaggedCase("dropout_five_jagged", FIVE, lengths_q=LENGTHS, same=True, **TAKEN),
    JaggedCase("dropout_jagged", DROPPED, **SELF),
    JaggedCase("dropout_jagged_causal", CAUSAL, **SELF),
    JaggedCase("dropout_jagged_keys", DROPPED, lengths_k=LENGTHS, m=8, bq=1),
    JaggedCase("dropout_jagged_queries", DROPPED, lengths_q=LENGTHS, n=19, bk=1),
]  # fmt: skip
