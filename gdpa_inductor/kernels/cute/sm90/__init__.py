"""Kernels for Hopper (sm_90a), in CuTe DSL. `wgmma`: what their products have in common."""
