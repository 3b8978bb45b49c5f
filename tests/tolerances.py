"""The tests' only tolerances: those of the package's error rule (`gdpa_inductor/error_rule.py`)."""

from gdpa_inductor.error_rule import FACTORS, FLOOR_ULP, FP64_RELATIVE, ErrorFactors, error_of

__all__ = ["FACTORS", "FLOOR_ULP", "FP64_RELATIVE", "ErrorFactors", "error_of"]
