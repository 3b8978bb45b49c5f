"""What the package does for whole models: a notebook, and the recommender of `make demo`."""
