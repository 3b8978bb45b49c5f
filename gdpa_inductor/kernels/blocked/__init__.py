"""GDPA in blocks of scores: one loop for CPUs and GPUs. No M×N tensor is held.

Torch's library computes the products, and `block_pass` compiles the score program between them.
`loop` runs both over the blocks, forward and backward. The two callers differ in their blocks:

- On a CPU, `tiling` chooses blocks that stay in the caches, and skips those that masks make zero.
  They are computed in fp32, or in fp64 for fp64. `jagged` runs one sequence after the other.
- On other devices, `chunks` chooses few large blocks, since each costs the launch of its kernels.
  Products are in the operands' dtype. `recording` repeats the steps of a call whose sizes are
  known, and `fused` computes S and the program in one kernel.
"""
