"""Private torch API, in modules by what they wrap; no other module of the package uses any.

`symbols` lists each symbol, the torch versions it was checked on, and why it is needed.
Dynamo: `dynamo`. Graphs: `fx`, `operators`, `shapes`, `subclasses`, `autograd`. Inductor:
`inductor`, `lowering`, `templates`. Launches: `device`. Nothing here knows of attention.
"""
