"""The entry point of `torch.compile(backend="gdpa")`. Importing this module registers the backend.

torch registers what an entry point loads. Threads that ask for a backend at the same time each find
that there is none yet, load it, and all but one raise "duplicate name" (torch 2.11 to 2.15). But an
import runs once, and other threads wait for it. So there is nothing left for torch to register:
`registered` is None.
"""

from ._compat import dynamo
from .backend import gdpa_backend

dynamo.register_backend(gdpa_backend, name="gdpa")
registered = None
