"""An ordinary recommender on MovieLens-100K under eager, stock Inductor and gdpa: `make demo`."""
