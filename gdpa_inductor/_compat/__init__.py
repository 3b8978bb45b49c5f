"""Private torch API, in modules by what they wrap; no other module of the package uses any.

`tests/compat/symbols.py` lists each symbol, its torch versions, and why it is needed.
Dynamo: `dynamo`. Graphs: `fx`, `operators`, `shapes`, `subclasses`, `autograd`. Inductor:
`inductor`, `lowering`, `templates`. Launches: `device`. Nothing here knows of attention.
"""
