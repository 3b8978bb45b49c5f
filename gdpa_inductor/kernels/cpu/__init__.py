"""The CPU kernel: blocks of scores (`dense`), one compiled loop between the two products
(`block_pass`), jagged sides (`jagged`, `short`), and which blocks the masks leave out (`tiles`).
"""
