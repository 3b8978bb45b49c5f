"""The parts that the forward kernels share.

- `scheduler` hands work tiles to the roles of a CTA. `work` decides which.
- `ranges` decides which key blocks the query tiles meet. `loads` loads all tiles by TMA.
"""
