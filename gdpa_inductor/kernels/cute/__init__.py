"""What CuTe DSL kernels share, whatever the architecture: the score program (`program`, `emit`,
`values`), matrices as TMA sees them (`operands`), and barriers (`barriers`).

A folder for each architecture: `sm100`. All modules but the configurations import cutlass, so they
are themselves imported when a kernel is compiled.
"""
