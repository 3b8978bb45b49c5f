"""Read one region: from its nodes to "product, score program, product".

shadow      A copy of the region, traced to functional ATen, for analysis only.
frame       The dimension algebra with index variables. `views`: how views change indices.
vocabulary  ATen's pointwise functions as score expressions, with `activations` and `kinds`.
contract    The rules of the vocabulary that the installed torch agrees with.
symbolic    Sizes as score expressions.
matcher     Reads a shadow as product, program, product.
weights     Reads the program, element by element. `piecewise`: weights that consist of parts.
factors     The factors of the products.
precision   Numbers that the model rounds, and dtypes that a program does not have.
reached     Which operands a gradient reaches.
reading     The result of the above.
layout      Gives index variables their roles (batch, heads, rows, keys), and makes the program.
"""
