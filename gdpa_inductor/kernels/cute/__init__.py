"""Attention kernels in CuTe DSL for Hopper (`sm90`) and Blackwell (`sm100`), and what they share.

On the host:

- `launch` runs a forward, `backward/launch` a backward.
- `tables` sums the gradients of learned tables. Its kernel is `table_sums`.
- `plan` checks a call and computes the arguments of its kernels, once for each form of a call.
- `launcher` and `runtime` launch compiled kernels. `replay` repeats the launches of a call.
- `compiler` compiles kernels, `disk` keeps them, and `precompile` has workers do so early.
- `config` has the compile-time parameters, `architectures` the GPUs.

In the kernels:

- `program`, `emit` and `values` compute the score program.
- `operands` are matrices as TMA sees them. `barriers` are mbarriers and rings of buffers.
- `sequences`, `ranges`, `forward/` and `backward/` decide which rows and tiles a CTA computes.

A launch imports no cutlass (tests/kernels/test_cute_runtime.py). `compiler`, and the modules that
kernels are written in, are imported only when a kernel is compiled.
"""
