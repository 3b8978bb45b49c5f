"""Finding: `rewrite_graph` replaces every activation(QKᵀ)V of a graph by one call of
`gdpa::attention`, in place.

    host/       facts about the user's nodes: values, storages, writes, products, places
    ambient     autocast, gradient mode and transforms along the graph
    candidates  products made from products; what one scan of a graph tells
    region      the nodes between two products, and whether it is safe to replace them
    shadow      a region traced to functional ATen, for analysis only
    frame       the dimension algebra: index variables, and views of them (`views`)
    vocabulary  ATen's point-wise functions as score expressions; sizes as such (`symbolic`)
    matcher     the structural reading of a shadow: product, program, product
    reading     what a region was read as; `joined`: weights put together from parts
    padding     what pads and unpads jagged values; `wrapped`: autograd.Functions around it
    jagged      sides of an attention that can do without; `implied`: masks that vanish there
    layout      the roles of index variables: batch, heads, rows, keys
    canonical   names for programs written out by hand
    profit      whether it pays, as far as that can be said of any device
    recipe      new nodes, tried on fakes first and written afterwards
    plan        one candidate: from its nodes to what replaces them
    rewrite     one pass over a graph: all of it in order
    judged      passes until the judge has no objection
"""

from __future__ import annotations

from .judged import rewrite_graph
from .result import Match, Result

__all__ = ["Match", "Result", "rewrite_graph"]
