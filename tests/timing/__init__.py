"""A timing model of one multiprocessor and of memory; docs/timing_model.md describes it."""
