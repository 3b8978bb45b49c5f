"""The operations of score programs: a row each, by families.

A row says all that the package knows of an operation, see `expr.Op`. Adding one is adding a row.
"""

from ..expr import INSTRUCTIONS, OPS
from . import activations, arithmetic, conversions, functions, logic, random, tables

for family in (arithmetic, functions, activations, conversions, logic, tables, random):
    OPS.update(family.ROWS)
INSTRUCTIONS.update(functions.INSTRUCTION_ROWS)
