"""Finding: `rewrite_graph` replaces every activation(QKᵀ)V of a graph by one call of
`gdpa::attention`, in place.

Terms: a *product* is a matrix product. A *candidate* is a pair of products that may be attention:
the second one has an operand that is made from the result of the first. A *region* is the nodes
between the two. A *leaf* is a tensor that enters a region from outside.

Stages. Each imports only those above it:

    result      Matches and refusals: what the finder returns.
    host/       The user's graph: facts about its nodes, candidates, and what is safe to change.
    reading/    Reads one region: traces it, matches it, gives its index variables roles.
    jagged/     Turns a dense reading into a jagged one.
    writing/    Makes the calls that replace a region, tries them on fakes, writes them.
    profit      Whether a rewrite pays, as far as this does not depend on the device.
    plan        From one candidate to the plan of its replacement.
    selection   Which plans are written together: those of the same scores share all or nothing.
    tables/     Another rewrite: gradients of learned tables from which biases are looked up.
    rewrite     One pass over a graph: all of the above in order.
    validation  Repeats passes until the judge accepts the result.
"""

from __future__ import annotations

from .result import Match, Result
from .validation import rewrite_graph

__all__ = ["Match", "Result", "rewrite_graph"]
