"""The user's graph: facts about its nodes, and what is safe to change.

functions   What torch's functions do, by their names.
facts       Values, storages and kinds of nodes. `sizes`: what is known of symbolic sizes.
writes      What a call changes in place, and which results may be aliases.
products    Which nodes are matrix products.
places      The place of a node in the user's source.
ambient     Autocast, gradient mode and transforms at each node.
candidates  Products that are made from products, by one scan of a graph.
effects     Whether in-place calls allow a region to be replaced.
region      The nodes between two products.
finder      Finds a region, and checks that it is safe to replace it.
"""
