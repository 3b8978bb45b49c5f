"""One step from a dense reading to a jagged one: without the padding that the model has around it.

padding  what pads and unpads jagged values; `wrapped`: autograd.Functions around it
sides    the sides of an attention that can do without
implied  masks that vanish there
"""
