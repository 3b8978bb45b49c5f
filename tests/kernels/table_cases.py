"""Problems with tables that a program looks up: a table. Their gradients are sums over rows, keys,
tiles or diagonals."""

import torch

from .cases import GROUPED, Case
from .five_matmul_cases import TAKEN as FIVE
from .jagged_cases import LENGTHS, OTHERS, JaggedCase
from .one_tile_cases import TAKEN as FEW

POSITION = "a0:f[h,t]; silu(add(mul(s,0.25),lookup(a0,add(sub(q_idx,kv_idx),60))))"
CAUSAL = "a0:f[h,t]; where(ge(q_idx,kv_idx),silu(add(s,lookup(a0,sub(q_idx,kv_idx)))),0.0)"
NEAREST = CAUSAL.replace("sub(q_idx,kv_idx)", "maximum(sub(q_idx,kv_idx),0)")
FEW_HEADS = "a0:f[t]; a1:f[h]; mul(silu(add(mul(s,0.25),lookup(a0,sub(kv_idx,q_idx)))),a1)"
BUCKETS = "a0:f[t,h]; add(s,lookup(a0,minimum(floordiv(abs(sub(q_idx,kv_idx)),4),8)))"
LOGARITHM = (
    "a0:f[h,t]; mul(sigmoid(s),lookup(a0,int(mul(log(float(add(abs(sub(q_idx,kv_idx)),1))),2.0))))"
)
TIME = "a0:f[t]; a1:i[b,q_idx,kv_idx]; silu(add(mul(s,0.25),lookup(a0,a1)))"
TIME_OF_HEADS = "a0:f[t,h]; a1:i[b,q_idx,kv_idx]; silu(add(mul(s,0.25),lookup(a0,sub(a1,-1))))"
OF_HEADS = "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; silu(add(mul(s,0.25),lookup(a0,a1)))"
PLACES_OF_HEADS = (
    "a0:f[t]; a1:i[b,q_idx,kv_idx]; silu(add(mul(s,0.25),lookup(a0,mod(add(add(a1,h),b),9))))"
)
BOTH = (
    "a0:f[t,h]; a1:i[b,q_idx,kv_idx]; a2:f[t]; "
    "silu(add(add(mul(s,0.25),lookup(a0,add(sub(q_idx,kv_idx),i0))),lookup(a2,a1)))"
)
ROWS = "a0:f[h,t]; a1:i[b,q_idx]; silu(add(s,lookup(a0,a1)))"
KEYS = "a0:f[t]; a1:i[kv_idx]; mul(silu(mul(s,0.25)),lookup(a0,a1))"
SCALAR = "a0:f[h,t]; silu(add(mul(s,0.25),lookup(a0,i0)))"
LITERAL = "a0:f[-,t]; silu(mul(s,lookup(a0,3)))"
OF_SAMPLES = "a0:f[b,h,t]; a1:i[b,q_idx,kv_idx]; sigmoid(add(s,lookup(a0,a1)))"
OF_QUERIES = "a0:f[q_idx,t]; sigmoid(add(s,lookup(a0,floordiv(kv_idx,8))))"
TURNED = "a0:f[t]; silu(add(s,lookup(a0,add(mul(h,9),abs(sub(q_idx,kv_idx))))))"
TIMES = "a0:f[h,t]; a1:i[q]; a2:i[k]; silu(add(s,lookup(a0,minimum(abs(sub(a1,a2)),9))))"
TOKENS = "a0:f[t]; a1:i[q,kv_idx]; sigmoid(add(s,lookup(a0,a1)))"
OUTSIDE = "a0:f[t]; silu(add(s,lookup(a0,sub(q_idx,kv_idx))))"
NARROW = {"integers": torch.uint8, "places": 9}
SIZES = {"m": 37, "n": 53, "places": 97}

CASES = [
    Case("table_position", POSITION, needs="qkv0", **SIZES),
    Case("table_position_long", POSITION, needs="0", m=150, n=140, h=1, b=1, choice=0, places=99),
    Case("table_position_shares", POSITION, needs="0", m=20, n=150, b=5, h=1, places=80),
    Case("table_causal", CAUSAL, needs="v0", m=100, n=100, places=100),
    Case("table_nearest", NEAREST, needs="qkv0", m=100, n=100, places=100),
    Case("table_few_heads", FEW_HEADS, needs="qkv01", h=3, m=40, n=20, places=200),
    Case("table_buckets", BUCKETS, needs="q0", **SIZES),
    Case("table_logarithm", LOGARITHM, needs="v0", m=40, n=40, places=20),
    Case("table_time", TIME, needs="qkv0", m=37, n=53, **NARROW),
    Case("table_time_of_heads", TIME_OF_HEADS, needs="qk0", m=37, n=53,
         integers=torch.int16, places=12),
    Case("table_both", BOTH, needs="qkv02", m=37, n=53, scalars=(52,), integers=torch.uint8,
         places=89),
    Case("table_both_dynamic", BOTH, needs="qkv02", m=37, n=53, scalars=(52,), places=89,
         dynamic=True),
    Case("table_both_wide", BOTH, needs="qv02", m=37, n=53, scalars=(52,), places=89, wide=True,
         **GROUPED),
    *(
        Case(f"table_shares_{name}", program, b=4, h=4, m=20, needs="0", stored=stored, **NARROW)
        for name, program, stored in (
            ("batch", TIME, 1 << 13), ("heads", OF_HEADS, 1 << 13),
            ("each", PLACES_OF_HEADS, 1 << 12), ("samples", OF_SAMPLES, 1),
        )
    ),
    JaggedCase("table_shares_jagged", OF_HEADS, lengths_q=(37, 0, 20, 5), same=True, h=4,
               needs="0", stored=11000, **NARROW),
    Case("table_rows", ROWS, needs="qkv0", m=37, n=53, **NARROW),
    Case("table_keys", KEYS, needs="qkv0", m=37, n=53, integers=torch.int32, places=9),
    Case("table_scalar", SCALAR, needs="qkv0", scalars=(5,), places=9),
    Case("table_literal", LITERAL, needs="qkv0", places=5),
    Case("table_of_samples", OF_SAMPLES, needs="qkv0", m=37, n=20, **NARROW),
    Case("table_of_queries", OF_QUERIES, needs="qkv0", m=37, n=53, places=7),
    Case("table_turned", TURNED, needs="qkv0", **SIZES),
    Case("table_outside", OUTSIDE, needs="0", m=20, n=20, places=9),
    Case("table_half", BOTH, needs="qkv02", m=37, n=53, scalars=(52,), integers=torch.uint8,
         places=89, half=True, tolerance=8e-3, options="kernel=triton,fast_math=False,strict=True"),
    Case("table_few", KEYS, m=20, n=300, needs="qkv0", places=9, **FEW),
    Case("table_five", POSITION, m=70, n=60, needs="qkv", places=140, **FIVE),
    JaggedCase("table_jagged", POSITION, lengths_q=(37, 0, 90, 1), same=True, needs="qkv0",
               places=150),
    JaggedCase("table_jagged_causal", CAUSAL, lengths_q=LENGTHS, same=True, needs="0", places=150),
    JaggedCase("table_jagged_both", BOTH, lengths_q=(37, 0, 20), lengths_k=(5, 40, 33),
               needs="qkv02", scalars=(45,), integers=torch.uint8, places=90),
    JaggedCase("table_jagged_times", TIMES, lengths_q=LENGTHS, lengths_k=OTHERS, needs="qkv0",
               places=10),
    JaggedCase("table_jagged_tokens", TOKENS, lengths_q=(37, 0, 20), lengths_k=(20, 7, 33),
               needs="q0", **NARROW),
    JaggedCase("table_jagged_rows", "a0:f[h,t]; a1:i[q]; silu(add(s,lookup(a0,a1)))",
               lengths_q=LENGTHS, n=30, needs="qkv0", **NARROW),
    JaggedCase("table_jagged_keys", "a0:f[t]; a1:i[k]; silu(add(s,lookup(a0,a1)))",
               lengths_k=LENGTHS, m=30, needs="qkv0", **NARROW),
    JaggedCase("table_jagged_dynamic", POSITION, lengths_q=(37, 0, 20), same=True, needs="qkv0",
               places=150, dynamic=True),
]  # fmt: skip
