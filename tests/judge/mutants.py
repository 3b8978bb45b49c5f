"""What stands in the place of a check of the matcher (`checks`): each replaces one, leniently."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gdpa_inductor.patterns.host import facts, functions
from gdpa_inductor.patterns.jagged.sides import JaggedSide
from gdpa_inductor.patterns.reading import factors, views, vocabulary, weights
from gdpa_inductor.patterns.result import Refused
from gdpa_inductor.patterns.tables import lookups
from gdpa_inductor.program.expr import call
from gdpa_inductor.rejection import Code

Without = Callable[[Any], Any]


def raised(result: Any, *args: Any, **kwargs: Any) -> bool:
    """A check that decides by raising alone."""
    return False


def gives(result: Any) -> Without:
    """The same answer, whatever is asked."""
    return lambda check: lambda *args, **kwargs: result


def copies(make: Callable[[], Any]) -> Without:
    return lambda check: lambda *args, **kwargs: make()


# What stands in the place of a check that is a function, or a method of an object.
nothing = gives(None)
identity = lambda check: lambda value, *rest: value
first_argument = lambda check: lambda self, value, *rest: value
by_type = lambda check: lambda node: facts.name(node) in functions.LAYOUTS | functions.CASTS
names_of_factories = lambda check: (
    lambda self, node, inside: facts.name(node) in functions.FACTORIES
)
unwritten = lambda check: (
    lambda self, node, stored: check(replace(self, mutators={}, spread={}), node, stored)
)
unwritten_sums = lambda check: (
    lambda graph, *rest: check(replace(graph, mutators={}, spread={}), *rest)
)
not_detached = lambda check: lambda self, leaf, index, detached=False: check(self, leaf, index)


def without(function: Callable) -> Without:
    """What stands in the place of a check; its first argument is the check."""
    return lambda check: lambda *args, **kwargs: function(check, *args, **kwargs)


def unless(code: Code, answer: Callable[..., Any]) -> Without:
    """Where the check refuses with `code`, the answer instead."""

    def without(check: Callable) -> Callable:
        def lenient(*args: Any, **kwargs: Any) -> Any:
            try:
                return check(*args, **kwargs)
            except Refused as refusal:
                if refusal.code is not code:
                    raise
                return answer(*args, **kwargs)

        return lenient

    return without


@without
def reads_of_leaves(check: Callable, graph: Any, extent: Any) -> Any:
    return {n: place for n, place in check(graph, extent).items() if n in extent.leaves}


def users_as_factories(self: Any, region: Any, candidate: Any) -> Any:
    """Whatever uses the scores reads their dtype and device only."""
    users = (user for node in region.nodes[:-1] for user in node.users)
    nodes = set(region.nodes)
    factories = dict.fromkeys(n for n in users if n not in nodes and n.op != "output")
    return replace(region, factories=tuple(factories))


@without
def any_size(check: Callable, self: Any, size: Any) -> bool:
    """A size that is found nowhere is that of the first input."""
    if not check(self, size):
        inputs = (n for n in self.host.order if n.op == "placeholder")
        first = next(n for n in inputs if any(t.dim() for t in facts.tensors(n)))
        for symbol in size.node.expr.free_symbols:
            self._symbols.setdefault(symbol, (first, 0))
    return True


@without
def dead_or_not(check: Callable, self: Any, user: Any, inside: Any, dead: Any) -> bool:
    """What a region is used by is dropped with it, if it is no output."""
    users, stack = {user: None}, [user]
    while stack:
        for node in stack.pop().users:
            if node in inside or node.op == "output":
                return False
            if node not in users:
                users[node] = None
                stack.append(node)
    dead.update(users)
    return True


@without
def any_cast(check: Callable, node: Any) -> bool:
    dtypes = [t.dtype for n in (*node.all_input_nodes, node) for t in facts.tensors(n)]
    return facts.name(node) in functions.CASTS and all(d.is_floating_point for d in dtypes)


@without
def all_compatible(check: Callable, plans: Any, graph: Any, profit: Any) -> Any:
    """Plans that share no node, those of dead results among them."""
    chosen, used = [], set()
    for one in sorted(plans, key=lambda p: -p.rank):
        if not used & set(one.region.all_nodes):
            chosen.append(one)
            used |= set(one.region.all_nodes)
    return sorted(chosen, key=lambda p: graph.order[p.region.end]), []


@without
def rounds_nothing(check: Callable, self: Any, node: Any, index: Any) -> Any:
    kind = weights.kind_of(weights.tensor_of(node).dtype)
    if kind != "f":
        return check(self, node, index)
    self.precision.note_width(node)
    return weights.real(self.read(node.args[0], index))


@without
def reads_detached(check: Callable, self: Any, node: Any, index: Any) -> Any:
    if facts.name(node) == "detach":
        return self.read(node.args[0], index)
    return check(self, node, index)


@without
def part_of_result(check: Callable, self: Any, index: Any) -> Any:
    """Any part of the second product stands for all of it, without what is added to it."""
    node = self.shadow.output
    while facts.name(node) not in factors.PRODUCTS:
        node, index = views.through_view(self.space, node, index)
    if facts.name(node) in factors.ADDED_PRODUCTS:
        node = Product(node.name, node.args[1:3], node.meta)
    return node, index


@dataclass(frozen=True)
class Product:
    """A node that multiplies and adds nothing."""

    name: str
    args: tuple[Any, ...]
    meta: dict[str, Any]
    op: str = "call_function"
    target: Any = torch.ops.aten.bmm.default


@without
def of_another_torch(check: Callable, key: str) -> Any:
    """The rule of other versions of torch, where they differ."""
    rule = check(key)
    others = [x for x in vocabulary.POINTWISE[key] if x is not rule]
    return others[0] if others else rule


def plain_lerp(kind: str, x: Any, y: Any, weight: Any) -> Any:
    x, y, w = (vocabulary.real(value) for value in (x, y, weight))
    return x + w * (y - x)


def loses_to_nan(old: Any) -> Any:
    """The larger one gets the gradient, and the first one beside a NaN."""

    def vjp(g: Any, _y: Any, x: Any, z: Any) -> Any:
        wins = call("ge", x, z)
        return call("where", wins, g, 0.0), call("where", wins, 0.0, g)

    return replace(old, vjp=vjp)


def towards_minus(old: Any) -> Any:
    def rule(kind: str, x: Any, y: Any, *, rounding_mode: Any = None) -> Any:
        if kind == "i":
            return call("floordiv", vocabulary.as_kind("i", x), vocabulary.as_kind("i", y))
        return old(kind, x, y, rounding_mode=rounding_mode)

    return rule


@without
def whole_scatter(check: Callable, node: Any, index: Any) -> Any:
    dim = int(node.args[2]) % len(index) if len(node.args) > 2 else 0
    if facts.name(node) == "select_scatter":
        return node.args[1], (*index[:dim], *index[dim + 1 :])
    return node.args[1], index


@without
def any_fill(check: Callable, *args: Any) -> JaggedSide:
    jagged_side = check(*args)
    return replace(jagged_side, pad=replace(jagged_side.pad, fill=0.0))


def pad_of_leaf(self: Any, name: str, leaf: Any, end: Any) -> Any:
    return self.pads[leaf]


@without
def all_branches(check: Callable, space: Any, branches: Any, index: Any) -> Any:
    single = [replace(b, end=b.start + 1) for b in branches]
    return check(space, single, index)


@without
def first_reach(check: Callable, self: Any, operand: Any, firsts: Any) -> Any:
    """Of several products the first."""
    products = check(self, operand, firsts)
    return set(sorted(products, key=self.order.__getitem__)[:1])


@without
def index_alone(check: Callable, node: Any, table: Any) -> Any:
    weight_first = facts.tensors(node.args[0])[0].is_floating_point()
    return lookups.Places(node.args[1 if weight_first else 0])
