"""P and dS of all scores, stored in 16 bits: `kernel`. Its warps: `loads` and `products`."""
