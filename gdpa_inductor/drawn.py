"""A captured graph with the masks of dropouts that a fused call draws: for `gdpa.verify`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor
from torch.fx import GraphModule

from ._compat import inductor
from .patterns import Match
from .patterns.host import facts
from .patterns.result import Draw
from .program.expr import AXES
from .program.ops.random import random16, threshold

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1  # between them Inductor draws seeds


class Seeds:
    """The seeds of a graph's dropouts, in the order of the graph.

    is_known: They are drawn at once, each for one call. recomputes: Some are of bodies.
    """

    def __init__(self) -> None:
        self.devices: list[torch.device] = []
        self.is_known, self.recomputes = True, False
        self._drawn: Tensor | None = None

    @property
    def ways(self) -> list[Callable[[], None]]:
        """How Inductor's code may draw them, first of all. One of these is called before a run.
        Else each seed is drawn where it is used, as in a rewritten graph that runs eagerly.
        """
        return [self._by_code, self._by_torch] if self.recomputes else [self._by_code]

    def _by_code(self) -> None:
        if self.devices:
            size, options = [len(self.devices)], {"dtype": torch.int64, "device": self.devices[0]}
            self._drawn = torch.ops.aten.randint.low(_LEAST, _MOST, size, **options)

    def _by_torch(self) -> None:
        # Where the backward draws them again, from the same state of the generator.
        self._drawn = inductor.seeds_op()(len(self.devices), self.devices[0])

    def dropout(self, draw: Draw, device: torch.device) -> Callable[..., Tensor]:
        """The next dropout of the graph, in the place of torch's."""
        number = len(self.devices)
        self.devices.append(device)
        self.is_known &= device == self.devices[0]

        def dropout_as_drawn(
            input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
        ) -> Tensor:
            if self._drawn is None:
                seed = inductor.seed_op()(device)
            else:
                seed = self._drawn[number]
            mask = _mask(input, draw, seed, p)
            multiply = torch.Tensor.mul_ if inplace else torch.mul
            return multiply(multiply(input, mask), 1.0 / (1.0 - p))

        return dropout_as_drawn


def as_drawn(gm: GraphModule, matches: Iterable[Match]) -> Seeds:
    """Let the dropouts of a graph, and of its bodies, draw what the fused calls draw."""
    seeds, known = Seeds(), {(m.body, draw.node): draw for m in matches for draw in m.draws}
    if known:
        _visit(gm, "", known, seeds)
        seeds.is_known &= len(seeds.devices) == len(known)
        seeds.recomputes = any(body for body, _ in known)
    return seeds


def _visit(gm: GraphModule, path: str, known: Mapping[tuple[str, str], Draw], seeds: Seeds) -> None:
    paths, bodies = {body: name for name, body in gm.named_modules()}, list(facts.bodies(gm))
    for node in gm.graph.nodes:
        draw = known.get((path, node.name))
        if draw is not None:
            node.kwargs, node.args = facts.arguments_of_dropout(node), ()
            node.target = seeds.dropout(draw, facts.tensors(node)[0].device)
        for body in (body for call, body in bodies if call is node):
            _visit(body, f"{path}.{paths[body]}".removeprefix("."), known, seeds)
    gm.recompile()


def _mask(x: Tensor, draw: Draw, seed: Tensor, p: float) -> Tensor:
    sizes: list[int] = []
    index = dict.fromkeys(AXES, torch.zeros((), dtype=torch.int64, device=x.device))
    for dim, size in zip(draw.dims, x.shape, strict=True):
        for n, axis, step in dim:
            sizes.append(size if len(dim) == 1 else int(n))
            # Along the last dim so far; those before it get one of size 1.
            index = {name: places.unsqueeze(-1) for name, places in index.items()}
            index[axis] = index[axis] + torch.arange(sizes[-1], device=x.device) * int(step)
    return (random16(seed, *index.values()) >= threshold(p)).expand(sizes).reshape(x.shape)
