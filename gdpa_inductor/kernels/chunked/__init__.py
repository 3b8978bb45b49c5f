"""GDPA in chunks of scores, on any device.

Torch's library computes the products. The score program is one compiled loop over a chunk
(`cpu.block_pass`). `chunks` decides which chunks there are, and their order.
"""
