"""The benchmarks of time and memory: `python -m gdpa_inductor bench`."""
