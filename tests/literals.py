"""Literals of the operations whose trailing arguments are such (`params`): those that tests try."""

LITERALS: dict[str, list[tuple[float, ...]]] = {
    "pow": [(2.0,), (3.0,), (1.0,), (-1.0,), (0.0,), (4.0,)],
    "clamp_min": [(0.0,), (-0.5,)],
    "clamp_max": [(0.0,), (3.0,)],
    "clamp_min_open": [(0.0,), (-0.5,)],
    "clamp_max_open": [(0.0,), (3.0,)],
    "leaky_relu": [(0.01,), (0.3,)],
    "elu": [(1.0, 1.0, 1.0), (0.7, 1.3, 2.0)],
    "softplus": [(1.0, 20.0), (2.0, 6.0)],
    "hardtanh": [(-1.0, 1.0), (0.0, 3.0)],
}
