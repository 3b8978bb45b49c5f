"""Times and memory: `python -m gdpa_inductor bench`."""
