"""The language of score programs: what stands between the two products, as terms over one score.

expr           terms, and what a row of the table of operations says
ops            the rows, by families
score_mod      the text form of a program
derivatives    gradients, in the same terms
canonical      names for what models write out by hand
simplify       terms folded as they are made
integers       how large integers become
intervals      bounds of terms over a set of scores
tile_classes   which tiles of the scores are zero, and which need no mask
loop_bounds    the same as the ends of a kernel's loop
rounding       whether a term is the same in every precision
fast           activations in the forms that a kernel in 16 bits evaluates
tails          what may be summed past the ends of its operands
"""

from . import ops as ops  # which fills the table
