"""GDPA in chunks of scores, on any device: the products are those of torch's library, the score
program is one compiled loop over a chunk (`cpu.block_pass`). Which chunks there are, and in which
order, is for `chunks`.
"""
