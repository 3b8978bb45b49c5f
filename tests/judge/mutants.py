"""What stands in the place of a check of the matcher (`checks`): each replaces one, leniently."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gdpa_inductor.patterns.host import facts, functions
from gdpa_inductor.patterns.jagged import padding
from gdpa_inductor.patterns.jagged.sides import JaggedSide
from gdpa_inductor.patterns.reading import factors, views, vocabulary, weights
from gdpa_inductor.patterns.result import Refused
from gdpa_inductor.patterns.tables import calls
from gdpa_inductor.program.expr import SCORE, call
from gdpa_inductor.rejection import Code

Without = Callable[[Any], Any]


def raised(found: Any, *args: Any, **kwargs: Any) -> bool:
    """A check that decides by raising alone."""
    return False


def gives(result: Any) -> Without:
    """The same answer, whatever is asked."""
    return lambda check: lambda *args, **kwargs: result


def copies(make: Callable[[], Any]) -> Without:
    return lambda check: lambda *args, **kwargs: make()


nothing = gives(None)
as_given = lambda check: lambda given, *rest: given
first_argument = lambda check: lambda self, given, *rest: given


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


def reads_of_leaves(check: Callable) -> Callable:
    def reads(graph: Any, extent: Any) -> Any:
        return {n: place for n, place in check(graph, extent).items() if n in extent.leaves}

    return reads


def users_as_factories(self: Any, region: Any, candidate: Any) -> Any:
    """Whatever uses the scores reads their dtype and device only."""
    users = (user for node in region.nodes[:-1] for user in node.users)
    found = dict.fromkeys(n for n in users if n not in set(region.nodes) and n.op != "output")
    return replace(region, factories=tuple(found))


def any_size(check: Callable) -> Callable:
    """A size that is found nowhere is that of the first input."""

    def can_write(self: Any, size: Any) -> bool:
        if not check(self, size):
            inputs = (n for n in self.host.order if n.op == "placeholder")
            first = next(n for n in inputs if any(t.dim() for t in facts.tensors(n)))
            for symbol in size.node.expr.free_symbols:
                self._symbols.setdefault(symbol, (first, 0))
        return True

    return can_write


def names_of_factories(check: Callable) -> Callable:
    return lambda self, node, inside: facts.name(node) in functions.FACTORIES


def dead_or_not(check: Callable) -> Callable:
    """What a region is used by is dropped with it, if it is no output."""

    def is_dead(self: Any, user: Any, inside: Any, dead: Any) -> bool:
        found, stack = {user: None}, [user]
        while stack:
            for node in stack.pop().users:
                if node in inside or node.op == "output":
                    return False
                if node not in found:
                    found[node] = None
                    stack.append(node)
        dead.update(found)
        return True

    return is_dead


def any_cast(check: Callable) -> Callable:
    def is_upcast(node: Any) -> bool:
        dtypes = [t.dtype for n in (*node.all_input_nodes, node) for t in facts.tensors(n)]
        return facts.name(node) in functions.CASTS and all(d.is_floating_point for d in dtypes)

    return is_upcast


def unwritten(check: Callable) -> Callable:
    return lambda self, node: check(replace(self, mutators={}, spread={}), node)


def all_compatible(check: Callable) -> Callable:
    """Plans that share no node, those of dead results among them."""

    def compatible(plans: Any, graph: Any, profit: Any) -> Any:
        chosen, taken = [], set()
        for one in sorted(plans, key=lambda p: -p.rank):
            if not taken & set(one.region.all_nodes):
                chosen.append(one)
                taken |= set(one.region.all_nodes)
        return sorted(chosen, key=lambda p: graph.order[p.region.end]), []

    return compatible


def any_positions(check: Callable) -> Callable:
    def product(self: Any, node: Any, index: Any) -> Any:
        try:
            return check(self, node, index)
        except Refused as refusal:
            if refusal.code is not Code.CROSS_ELEMENT:
                raise
            return SCORE

    return product


def rounds_nothing(check: Callable) -> Callable:
    def cast(self: Any, node: Any, index: Any) -> Any:
        kind = weights.kind_of(weights.tensor_of(node).dtype)
        if kind != "f":
            return check(self, node, index)
        self.precision.note_width(node)
        return weights.real(self.read(node.args[0], index))

    return cast


def reads_detached(check: Callable) -> Callable:
    def read(self: Any, node: Any, index: Any) -> Any:
        if facts.name(node) == "detach":
            return self.read(node.args[0], index)
        return check(self, node, index)

    return read


def part_of_result(check: Callable) -> Callable:
    """Any part of the second product stands for all of it, without what is added to it."""

    def second(self: Any, index: Any) -> Any:
        node = self.shadow.output
        while facts.name(node) not in factors.PRODUCTS:
            node, index = views.through_view(self.space, node, index)
        if facts.name(node) in factors.ADDED_PRODUCTS:
            node = Product(node.name, node.args[1:3], node.meta)
        return node, index

    return second


@dataclass(frozen=True)
class Product:
    """A node that multiplies and adds nothing."""

    name: str
    args: tuple[Any, ...]
    meta: dict[str, Any]
    op: str = "call_function"
    target: Any = torch.ops.aten.bmm.default


def of_another_torch(check: Callable) -> Callable:
    """The rule of other versions of torch, where they differ."""

    def other(key: str) -> Any:
        held = check(key)
        others = [rule for rule in vocabulary.POINTWISE[key] if rule is not held]
        return others[0] if others else held

    return other


def plain_lerp(kind: str, x: Any, y: Any, weight: Any) -> Any:
    x, y, w = (vocabulary.real(given) for given in (x, y, weight))
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


def whole_scatter(check: Callable) -> Callable:
    def through(node: Any, index: Any) -> Any:
        dim = int(node.args[2]) % len(index) if len(node.args) > 2 else 0
        if facts.name(node) == "select_scatter":
            return node.args[1], (*index[:dim], *index[dim + 1 :])
        return node.args[1], index

    return through


def any_fill(check: Callable) -> Callable:
    def side(*args: Any) -> JaggedSide:
        found = check(*args)
        return replace(found, pad=replace(found.pad, fill=0.0))

    return side


def taken(self: Any, name: str, leaf: Any, end: Any) -> Any:
    return self.pads[leaf]


def not_detached(check: Callable) -> Callable:
    return lambda self, leaf, index, detached=False: check(self, leaf, index)


def all_branches(check: Callable) -> Callable:
    def inside(space: Any, branches: Any, index: Any) -> Any:
        single = [replace(b, end=b.start + 1) for b in branches]
        return check(space, single, index)

    return inside


def first_reach(check: Callable) -> Callable:
    """Of several products the first."""

    def reached(self: Any, operand: Any, firsts: Any) -> Any:
        found = check(self, operand, firsts)
        return set(sorted(found, key=self.order.__getitem__)[:1])

    return reached


def by_type(check: Callable) -> Callable:
    return lambda node: facts.name(node) in padding.READ_THROUGH


def index_alone(check: Callable) -> Callable:
    def place(node: Any, table: Any) -> Any:
        weight_first = facts.tensors(node.args[0])[0].is_floating_point()
        return calls.Places(node.args[1 if weight_first else 0])

    return place


def same_range(check: Callable) -> Callable:
    return lambda first, second: True
