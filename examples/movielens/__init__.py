"""The demo, `make demo`: a recommender on MovieLens-100K under eager, Inductor and gdpa."""
