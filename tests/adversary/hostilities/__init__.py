"""The table of hostilities. Each module adds its own."""

from . import (
    doors,
    forms,
    gradients,
    integers,
    later_writes,
    lengths,
    pages,
    structure,
    values,
    writes,
)
from .table import TABLE, Hostility

__all__ = [
    "HOSTILITIES",
    "Hostility",
    "doors",
    "forms",
    "gradients",
    "integers",
    "later_writes",
    "lengths",
    "pages",
    "structure",
    "values",
    "writes",
]

# Modules are imported in alphabetical order, so the table's order is the same everywhere.
HOSTILITIES: tuple[Hostility, ...] = tuple(TABLE)
