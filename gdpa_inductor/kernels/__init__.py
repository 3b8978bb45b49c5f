"""Kernels: the Triton templates, and the table of configurations that are tried for them."""
