"""What CuTe DSL kernels share, whatever the architecture.

- the score program: `program`, `emit`, `values`
- matrices as TMA sees them: `operands`; barriers: `barriers`
- which rows and tiles there are: `work`, `ranges`; for the forward also `forward/`
- host checks, plans and launches: `launch`, `plan`, `launcher`; again: `replay`
- compiled kernels: `compiler`, on `disk`, in the `runtime` library that launches them
- which GPUs there are kernels for: `architectures`, a folder for each: `sm90`, `sm100`

What launches does without cutlass (tests/kernels/test_cute_runtime.py). `compiler` and what
kernels are written in are imported when one is compiled.
"""
