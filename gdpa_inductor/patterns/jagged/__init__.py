"""Turn a dense reading into a jagged one: remove the padding that the model has around it.

pads     Calls that pad and unpad. `autograd_functions`: autograd.Functions around such calls.
offsets  Which offsets are equal.
padding  What a graph pads, which numbers the padding has, and where it is removed.
sides    The sides of an attention whose padding can be removed.
implied  Masks that are always true on such a side.
step     All of the above in order.
"""
