"""The user's graph, and what is safe to touch in it.

functions   what torch's functions do, by their names; `mixing`: those that mix elements
facts       values, storages and kinds of nodes; `sizes`: what is known of symbolic ones
writes      what a call changes in place, and what may be an alias
products    which nodes multiply matrices
places      where a node stands in the user's source
ambient     autocast, gradient mode and transforms along the graph
candidates  products made from products; what one scan of a graph tells
effects     whether in-place calls let a region be replaced
region      the nodes between two products, and whether it is safe to replace them
"""
