"""What replaces a region: tried on fakes first, written into the graph afterwards.

recipe  the calls of a replacement, tried on fakes
saved   operands that are copied, since they change before the backward
writer  recipes put into a graph
"""
