"""Kernels for Blackwell (sm_100a), in CuTe DSL.

`config` has their compile-time parameters, and imports no cutlass. The modules of the kernels
import cutlass, and are imported only when a kernel is compiled.
"""
