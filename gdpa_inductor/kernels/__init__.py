"""Kernels by technology: `triton`, `cpu` and `cute`. They know no operator and no Inductor."""
