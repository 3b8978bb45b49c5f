"""The Triton kernels: templates and what decides how they are rendered.

`templates/` has the jinja sources. `template` has the `Plan` of a kernel, which decides how its
source is rendered. `configs` has the tile sizes. `device_tables` are made before a kernel runs.
"""
