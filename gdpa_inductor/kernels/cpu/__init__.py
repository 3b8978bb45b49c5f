"""The CPU kernel: blocks of scores (`dense`), and one compiled loop between the two products
(`block_pass`). Jagged sides are in `jagged` and `short`, and which blocks the masks leave out in
`tiles`.
"""
