"""Turn a dense reading into a jagged one: remove the padding that the model has around it.

pads       Calls that pad and unpad, also those in autograd.Functions.
offsets    Which offsets are equal.
padding    What a graph pads, which numbers the padding has, and where it is removed.
sides      The sides of an attention whose padding can be removed.
unpadding  All of the above in order, and masks that are always true on such a side.
"""
