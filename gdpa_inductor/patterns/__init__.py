"""Finding: `rewrite_graph` replaces every activation(QKᵀ)V of a graph by one call of
`gdpa::attention`, in place.

Stages, each of which imports those above it only:

    result      what the finder says: matches and refusals
    host/       the user's graph: facts about its nodes, candidates, and what is safe to touch
    reading/    one region: traced, matched, its index variables given roles
    jagged/     from a dense reading to a jagged one
    writing/    the calls of a replacement, tried on fakes; then written
    profit      whether it pays, as far as that can be said of any device
    plan        one candidate: from its nodes to what replaces them
    tables/     another rewrite: gradients of learned tables that biases are looked up in
    rewrite     one pass over a graph: all of it in order
    judged      passes until the judge has no objection
"""

from __future__ import annotations

from .judged import rewrite_graph
from .result import Match, Result

__all__ = ["Match", "Result", "rewrite_graph"]
