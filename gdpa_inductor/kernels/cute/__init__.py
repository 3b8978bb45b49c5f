"""What CuTe DSL kernels share, whatever the architecture.

- the score program: `program`, `emit`, `values`
- matrices as TMA sees them: `operands`; barriers: `barriers`
- which rows and tiles there are: `work`, `ranges`; for the forward also `forward/`
- host checks, compiled kernels and launches: `launch`
- which GPUs there are kernels for: `architectures`, a folder for each: `sm90`, `sm100`

Only `config`, `architectures` and the configurations of the folders do without cutlass. All other
modules are imported when a kernel is compiled.
"""
