"""Kernels for Hopper (sm_90a), in CuTe DSL.

- `forward` and `backward` are the kernels.
- `config` has their compile-time parameters, and imports no cutlass.
- `wgmma` is what their products have in common.
"""
