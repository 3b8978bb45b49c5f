"""Write the replacement of a region: try its calls on fakes, then put them into the graph.

recipe       Calls that are tried on fakes.
replacement  The calls that replace one region.
saved        Operands that are copied, because they change before the backward.
writer       Puts recipes into a graph.
"""
