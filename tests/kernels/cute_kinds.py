"""Blackwell's configurations whose backward is one kernel wherever that fits, or always one for
each side.
"""

from gdpa_inductor.kernels.cute.sm100.config import Sm100Config


class OneKernel(Sm100Config):
    def merges(self, rows: int, cols: int) -> bool:
        return self.both_fit


class TwoKernels(Sm100Config):
    def merges(self, rows: int, cols: int) -> bool:
        return False
