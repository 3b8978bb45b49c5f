"""Turn a dense reading into a jagged one: remove the padding that the model has around it."""
