"""Kernels by technology: `triton`, `blocked` (CPUs, and chunks on GPUs) and `cute`. They know no
operator."""
