"""The language of score programs: the function between the two products, as terms over one score.

A score program turns a score s = q·k into a weight P: scale, bias, activation and mask
(docs/score_programs.md).
"""

from . import ops as ops  # which fills the table of operations
