"""Programs around attention, a module for each topic: what torch's semantics allow there."""

from ..rows import gather

CASES = gather(__path__, __name__)
