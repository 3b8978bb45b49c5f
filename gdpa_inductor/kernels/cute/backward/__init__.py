"""The parts that the backward kernels of all architectures share.

- `launch` runs a backward. `roots` has its terms, and says what it cannot do.
- `walk` and `ranges` decide which tiles a CTA computes.
- `biases`, `summation` and `jagged_…` compute gradients of aux operands.

Terms: each CTA keeps one tile in shared memory, the resident tile. Tiles of the other side pass by
one after the other; they are the streamed tiles.
"""
