"""The chunked backend: matrix products of torch's library, on some of the scores at a time.

It takes any device, dtype and head dim. `lower` defines its operators and puts calls of them into
the generated code. `cost` estimates when it is faster than the unfused form. All other backends are
preferred to it.
"""

from ...rejection import Code
from ..backends import Backend, Rule
from .cost import expected, frugally_slower, not_on_cpu, padded_to_all, slower, strange_dtypes
from .lower import lower, lower_backward

__all__ = ["BACKEND", "lower", "lower_backward"]

_ON_CPU = Rule(Code.SLOWER, not_on_cpu, quiet=True)
BACKEND = Backend(
    name="chunked",
    devices=("cuda", "cpu", "xpu", "mps"),
    refuses=(Rule(Code.DTYPE, strange_dtypes), Rule(Code.LOWERING, padded_to_all)),
    pays=(_ON_CPU, Rule(Code.SLOWER, slower, quiet=True)),
    frugal=(_ON_CPU, Rule(Code.SLOWER, frugally_slower, quiet=True)),
    about=expected,
    by_name=("xpu", "mps"),  # it has not been run there
    lower=lower,
    lower_backward=lower_backward,
)
