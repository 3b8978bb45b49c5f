"""Reading one region: from its nodes to the product, program and product that they compute.

shadow      the region traced to functional ATen, for analysis only
frame       the dimension algebra: index variables; `views`: views of them
vocabulary  ATen's point-wise functions as score expressions, with `activations` and `kinds`
symbolic    sizes as score expressions; `widths`: dtypes that a program forgets
matcher     the structural reading of a shadow: product, program, product
weights     the program, element by element; `piecewise`: weights put together from parts
factors     the factors of the products; `precision`: numbers that the model rounds
reached     which operands a gradient reaches
reading     what a region was read as
layout      the roles of index variables: batch, heads, rows, keys
program     the score program of a reading
"""
