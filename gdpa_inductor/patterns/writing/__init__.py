"""What replaces a region: tried on fakes first, written into the graph afterwards.

recipe       calls that are tried on fakes
replacement  the calls that replace one region
saved        operands that are copied, since they change before the backward
writer       recipes put into a graph
"""
