"""The chunked backend: any device, dtype and head dim, by the products of torch's library.

`lower` defines the operators and the calls of them in generated code. `cost` estimates when they
pay. Kernels of other backends come first.
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
