"""The second door: the pass alone, inside of stock Inductor.

    torch.compile(model, options={"pre_grad_custom_pass": gdpa_inductor.GDPAPass(strict=True)})

Inductor calls it with the graph that Dynamo captured, before autograd is traced, exactly where
`backend="gdpa"` works.
"""

from __future__ import annotations

from typing import Any

import torch

from ._compat import dynamo, inductor
from .backend import rewrite
from .options import Options
from .rejection import GDPAError
from .sources import source_hash


class GDPAPass(inductor.custom_graph_pass()):  # type: ignore[misc]
    """Rewrites GDPA regions in place. Keyword arguments are the options, without their prefix:
    `strict=True`.

    Raises:
        ValueError: an unknown option, with the nearest known one. GDPAError: `verify`, which needs
            `backend="gdpa"`. TypeError: the class was given to Inductor in place of an object.
    """

    def __init__(self, *graph: Any, **options: Any) -> None:
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
        # Inductor hands over nested bodies first and on their own. The graph that calls them
        # rewrites them with what it knows of their surroundings (autocast, gradient mode).
        if gm is not None and not dynamo.is_dynamo_body(gm):
            rewrite(gm, self.options)

    def uuid(self) -> Any:
        """What the caches of Inductor know this pass by: our sources and the options."""
        return (source_hash(), repr(self.options))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process the tag of the caches is not there yet."""
        self.__dict__.update(state)
        inductor.add_cache_key_tag(source_hash())
