"""The second entry point: the rewrite as a pass of stock Inductor.

    torch.compile(model, options={"pre_grad_custom_pass": gdpa_inductor.GDPAPass(strict=True)})

Inductor calls the pass with the graph that Dynamo captured, before autograd is traced. That is the
place where `backend="gdpa"` rewrites too.
"""

from __future__ import annotations

from typing import Any

import torch
from typing_extensions import Unpack

from ._compat import dynamo, inductor
from .backend import rewrite
from .lowerings import cache_tag
from .options import Options, OptionValues
from .rejection import GDPAError
from .sources import source_hash


class GDPAPass(inductor.custom_graph_pass()):  # type: ignore[misc]
    """Rewrites GDPA regions in place. Keyword arguments are the options, without their prefix:
    `strict=True`.

    Raises:
        ValueError: an unknown option, with the nearest known one.
        GDPAError: `verify`, which needs `backend="gdpa"`.
        TypeError: the class was given to Inductor in place of an object.
    """

    def __init__(self, *graph: Any, **options: Unpack[OptionValues]) -> None:
        if graph:
            raise TypeError(
                "GDPAPass is a class, and takes its options by name: write "
                'options={"pre_grad_custom_pass": GDPAPass()} or GDPAPass(strict=True)'
            )
        self.options = Options.make(options)
        if self.options.verify:
            raise GDPAError(
                'gdpa.verify runs the compiled graph, which a pass does not see: use backend="gdpa"'
            )
        inductor.add_cache_key_tag(source_hash())

    def __call__(self, graph: torch.fx.Graph) -> None:
        gm = graph.owning_module
        # Inductor passes nested bodies first, without the graph that calls them. They are rewritten
        # later, with that graph, which knows their modes (autocast, gradient mode).
        if gm is not None and not dynamo.is_dynamo_body(gm):
            rewrite(gm, self.options)

    def uuid(self) -> Any:
        """The key of this pass in Inductor's caches."""
        return (cache_tag(), repr(self.options))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the tag of the caches, which another process does not have yet."""
        self.__dict__.update(state)
        inductor.add_cache_key_tag(source_hash())
