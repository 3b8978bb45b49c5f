"""Read one region: from its nodes to "product, score program, product".

shadow      A copy of the region, traced to functional ATen, for analysis only.
frame       The dimension algebra with index variables. `views`: how views change indices.
vocabulary  ATen's pointwise functions as score expressions, with `activations` and `kinds`.
symbolic    Sizes as score expressions. `widths`: dtypes that a program does not have.
matcher     Reads a shadow as product, program, product.
weights     Reads the program, element by element. `piecewise`: weights that consist of parts.
factors     The factors of the products. `precision`: numbers that the model rounds.
reached     Which operands a gradient reaches.
reading     The result of the above.
layout      Gives index variables their roles: batch, heads, rows, keys.
program     The score program of a reading.
"""
