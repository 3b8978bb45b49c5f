"""One step from a dense reading to a jagged one: without the padding that the model has around it.

pads     calls that pad and unpad; `autograd_functions`: autograd.Functions around them
offsets  which offsets are one
padding  what a graph pads, what stands there, where it is cut off
sides    the sides of an attention that can do without
implied  masks that vanish there
step     all of it
"""
