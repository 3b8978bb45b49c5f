"""The user's graph, and what is safe to touch in it.

functions   what torch's functions do, by their names
facts       values, storages and kinds of nodes
writes      what a call changes in place, and what may be an alias
products    which nodes multiply matrices
places      where a node stands in the user's source
"""
