"""The language of score programs: the function between the two products, as terms over one score.

A score program turns a score s = q·k into a weight P: scale, bias, activation and mask
(docs/score_programs.md).

expr           Terms, their gradients, and the fields of the table of operations.
ops            The rows of the table, by families.
score_mod      The text form of a program.
canonical      Recognises formulas that models write out by hand, such as silu.
simplify       Makes terms and simplifies them at once.
integers       How large integers can become.
intervals      Bounds of terms over a set of scores.
tile_classes   Which tiles of the scores are zero, and which need no mask.
loop_bounds    The same, as the ends of a kernel's loop.
rounding       Whether a term is the same in every precision.
fast           The forms of activations for 16-bit kernels.
tails          Which terms need no mask past the end of a sequence.
"""

from . import ops as ops  # which fills the table
