"""The CPU kernel. It computes one block of scores after the other.

- `dense` runs forward and backward over `blocks`. Torch computes the products.
- `block_pass` is the score program as one compiled loop over a block.
- `jagged` and `short` run jagged sequences.
- `tiles` decides which blocks masks make zero.
"""
